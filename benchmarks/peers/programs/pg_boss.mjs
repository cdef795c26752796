// pg-boss with large batches, continuous fetching while batches are full, and LISTEN/NOTIFY.
import { PgBoss } from 'pg-boss'
import { Reporter, serve } from './channel.mjs'

const QUEUE = 'plain'
// Measured: a fifth faster than one fetching loop, and as fast as eight.
const localConcurrency = 4
const batchSize = 1000

class BossClient {
  constructor(boss) {
    this.boss = boss
  }

  async oneByOne(numbers) {
    for (const n of numbers) await this.boss.send(QUEUE, { n })
  }

  async inBulk(numbers) {
    await this.boss.insert(QUEUE, numbers.map((n) => ({ data: { n } })))
  }
}

async function work(boss) {
  const reporter = new Reporter()
  await boss.work(QUEUE, { batchSize, localConcurrency, burstWhenBatchFull: true }, async (jobs) => {
    for (const job of jobs) reporter.ran(job.data.n)
  })
  process.once('SIGTERM', async () => {
    await boss.stop()
    process.exit(0)
  })
}

const role = process.argv[2]
const background = role === 'worker'
const boss = new PgBoss({
  connectionString: process.env.PEERS_DATABASE_URL,
  useListenNotify: background,
  supervise: background,
  schedule: background,
})
boss.on('error', (error) => console.error(error))
await boss.start()
if (role === 'worker') {
  await work(boss)
} else {
  if (role === 'install') await boss.createQueue(QUEUE, { notify: true })
  else await serve(new BossClient(boss))
  await boss.stop({ graceful: false })
}
