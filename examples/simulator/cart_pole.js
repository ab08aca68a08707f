// A cart-pole in JavaScript that plays through an ActorQ actor, with @grpc/grpc-js and @grpc/proto-loader.
//
//   node cart_pole.js [ADDRESS [ENVIRONMENTS]]
//
// In a pod, ACTOR_ADDRESS has the address, and ACTOR_CERTIFICATES the folder of the certificates.

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const PROTOS = process.env.PROTOS ?? path.join(__dirname, "..", "..", "protos");
const OPTIONS = { includeDirs: [PROTOS], keepCase: true };
const definition = protoLoader.loadSync("actorq/v1/external.proto", OPTIONS);
const { ExternalEnvironmentService } = grpc.loadPackageDefinition(definition).actorq.v1;

const NUMBERS = { kind: "LEAF_KIND_NUMBERS", spec: { dtype: "DATA_TYPE_FLOAT32", shape: [4] } };

// The classic task: push a cart left or right, so that the pole on it stays upright. 500 steps at most.
class CartPole {
  constructor() {
    this.reset();
  }

  reset() {
    this.state = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
    Object.assign(this, { steps: 0, reward: 0, failed: false, cut: false });
  }

  // Pushes, or begins the next episode if the last one has ended.
  step(action) {
    if (this.failed || this.cut) return this.reset();
    const [, speed, angle, spin] = this.state;
    const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
    const push = ((action ? 10 : -10) + 0.05 * spin * spin * sine) / 1.1;
    const turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - (0.1 * cosine * cosine) / 1.1));
    const pull = push - (0.05 * turn * cosine) / 1.1;
    this.state = [speed, pull, spin, turn].map((change, i) => this.state[i] + 0.02 * change);
    this.steps += 1;
    this.reward = 1;
    this.failed = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * Math.PI) / 180;
    this.cut = this.steps === 500;
  }
}

// The step of all cart-poles. Tensors are little-endian, like typed arrays on all usual processors.
function message(poles) {
  const data = Buffer.from(Float32Array.from(poles.flatMap((pole) => pole.state)).buffer);
  return {
    observations: [{ dtype: "DATA_TYPE_FLOAT32", shape: [poles.length, 4], data }],
    rewards: poles.map((pole) => pole.reward),
    terminated: poles.map((pole) => pole.failed),
    truncated: poles.map((pole) => pole.cut),
  };
}

// Mutual TLS if there are certificates.
function credentials() {
  const folder = process.env.ACTOR_CERTIFICATES;
  if (!folder) return grpc.credentials.createInsecure();
  try {
    const files = ["ca.crt", "tls.key", "tls.crt"].map((name) => fs.readFileSync(path.join(folder, name)));
    return grpc.credentials.createSsl(...files);
  } catch (error) {
    console.error(`error: cannot read ${error.path ?? folder}`);
    process.exit(1);
  }
}

// Plays until the run is over. Connects again while the actor is unavailable.
function play(address, count) {
  const client = new ExternalEnvironmentService(address, credentials());
  const poles = Array.from({ length: count }, () => new CartPole());
  const stream = client.Play();
  stream.on("data", (answer) => {
    const data = answer.action?.actions.data;
    if (data) poles.forEach((pole, i) => pole.step(data.readInt32LE(8 * i)));
    stream.write({ step: message(poles) });
  });
  stream.on("error", () => {}); // The status comes too.
  stream.on("status", ({ code, details }) => {
    client.close();
    if (code === grpc.status.OK) {
      console.log("the run is over");
    } else if (code === grpc.status.UNAVAILABLE) {
      setTimeout(play, 500, address, count);
    } else {
      console.error(`error: ${details}`);
      process.exitCode = 1;
    }
  });
  stream.write({
    open: {
      protocol: 1,
      environments: count,
      observations: [NUMBERS],
      actions: { dtype: "DATA_TYPE_INT64" },
      sizes: [2],
      max_episode_steps: 500,
      reward_threshold: 475,
    },
  });
}

// Without a handler, the first process of a container would ignore SIGTERM.
process.on("SIGTERM", () => process.exit());
play(process.argv[2] ?? process.env.ACTOR_ADDRESS ?? "127.0.0.1:50053", Number(process.argv[3] ?? 8));
