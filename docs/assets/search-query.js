// In a query, a dash before a word means "without this word". So a flag becomes the key of its setting: --a-b.c is a_b.c.
{
  const QUERY = 2;
  const FLAG = /(^|\s)--+(\w[\w.-]*)/g;
  const asKey = (_, before, name) => before + name.replaceAll("-", "_");
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type === QUERY) message = { ...message, data: message.data.replace(FLAG, asKey) };
    return postMessage.call(this, message, ...rest);
  };
}
