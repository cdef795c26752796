// graphile-worker with the settings of its own performance page: a local queue and batched completion.
import { makeWorkerUtils, run, Logger } from 'graphile-worker'
import { Reporter, serve } from './channel.mjs'

const connectionString = process.env.PEERS_DATABASE_URL
const logger = new Logger(() => () => {})

class GraphileClient {
  constructor(utils) {
    this.utils = utils
  }

  async oneByOne(numbers) {
    for (const n of numbers) await this.utils.addJob('plain', { n })
  }

  async inBulk(numbers) {
    await this.utils.addJobs(numbers.map((n) => ({ identifier: 'plain', payload: { n } })))
  }
}

async function work() {
  const reporter = new Reporter()
  const runner = await run({
    preset: {
      worker: {
        connectionString,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    logger,
    noHandleSignals: true,
    parsedCronItems: [],
    taskList: { plain: ({ n }) => reporter.ran(n) },
  })
  process.once('SIGTERM', async () => {
    await runner.stop()
    process.exit(0)
  })
}

if (process.argv[2] === 'worker') {
  await work()
} else {
  const utils = await makeWorkerUtils({ connectionString, logger })
  if (process.argv[2] === 'install') await utils.migrate()
  else await serve(new GraphileClient(utils))
  await utils.release()
}
