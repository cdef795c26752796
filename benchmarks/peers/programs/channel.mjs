// What the programs of graphile-worker and pg-boss share; channel.py does the same for Python.
import { createInterface } from 'node:readline'

export const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')

// Microseconds on the clock that all processes of this machine share.
export const nowUs = () => Number(process.hrtime.bigint() / 1000n)

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Counts the handlers that ran, and how long each job waited. An idle worker reports nothing and costs nothing.
export class Reporter {
  count = 0
  waits = []
  #planned = false

  ran(sentUs) {
    this.count += 1
    if (sentUs) this.waits.push(nowUs() - sentUs)
    if (!this.#planned) {
      this.#planned = true
      setTimeout(() => this.#report(), 10)
    }
  }

  #report() {
    this.#planned = false
    say({ ran: this.count, at: nowUs(), waits: this.waits })
    this.waits = []
  }
}

const commands = {
  async one(client, { jobs }) {
    await client.oneByOne(Array(jobs).fill(0))
  },
  async bulk(client, { jobs, batch }) {
    for (let start = 0; start < jobs; start += batch) {
      await client.inBulk(Array(Math.min(batch, jobs - start)).fill(0))
    }
  },
  async paced(client, { jobs, batch, per_second: perSecond }) {
    let due = performance.now()
    for (let sent = 0; sent < jobs; sent += batch) {
      const early = due - performance.now()
      if (early > 0) await sleep(early)
      if (batch === 1) await client.oneByOne([nowUs()])
      else await client.inBulk(Array(batch).fill(nowUs()))
      due += (batch / perSecond) * 1000
    }
  },
}

export async function serve(client) {
  say({ ready: true })
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    const began = performance.now()
    await commands[command.do](client, command)
    say({ seconds: (performance.now() - began) / 1000 })
  }
}
