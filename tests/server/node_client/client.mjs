// What the official OpenAI client for Node sees of a server, as one line of JSON: node client.mjs URL SCENARIO [TEXT [stream]]
import OpenAI from 'openai';

const [url, scenario, text] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const model = 'chat';
const ask = (content, more = {}) =>
  client.chat.completions.create({ model, messages: [{ role: 'user', content }], ...more });

const add = {
  type: 'function',
  function: {
    name: 'add',
    description: 'Adds two numbers.',
    parameters: {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'integer' } },
      required: ['a', 'b'],
    },
  },
};

async function failure(request) {
  try {
    const reply = await request();
    for await (const _ of reply);
  } catch (error) {
    const { name } = error.constructor;
    return { name, status: error.status ?? null, code: error.code, param: error.param };
  }
  return null;
}

const scenarios = {
  async chat() {
    const reply = await ask(text);
    return { content: reply.choices[0].message.content, finish: reply.choices[0].finish_reason, usage: reply.usage };
  },

  async stream() {
    const deltas = [];
    let usage;
    for await (const chunk of await ask(text, { stream: true, stream_options: { include_usage: true } })) {
      if (chunk.choices.length) deltas.push(chunk.choices[0].delta.content ?? '');
      usage = chunk.usage ?? usage;
    }
    return { deltas, usage };
  },

  // The client's own loop: it calls the function, sends the result and asks again, until there is no call.
  async tools() {
    const called = [];
    const weather = ({ city }) => {
      called.push(city);
      return JSON.stringify({ temperature: 21, unit: 'C', sky: 'sunny' });
    };
    const tool = {
      type: 'function',
      function: {
        name: 'get_weather',
        description: 'Current weather of a city.',
        function: weather,
        parse: JSON.parse,
        parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
      },
    };
    const runner = client.chat.completions.runTools({
      model, messages: [{ role: 'user', content: text }], tools: [tool], stream: process.argv[5] === 'stream',
    });
    return { content: await runner.finalContent(), called, roles: runner.messages.map((message) => message.role) };
  },

  // A whole message from the chunks of a stream, calls in it put together by the client.
  async calls() {
    const runner = client.chat.completions.stream({ model, messages: [{ role: 'user', content: text }], tools: [add] });
    const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0];
    return { finish: finish_reason, calls: message.tool_calls.map((call) => JSON.parse(call.function.arguments)) };
  },

  async errors() {
    return {
      range: await failure(() => ask('x', { temperature: 9 })),
      model: await failure(() => client.chat.completions.create({ model: 'gpt-9', messages: [{ role: 'user', content: 'x' }] })),
      engine: await failure(() => ask(text)),
      stream: await failure(() => ask(text, { stream: true })),
      session: await failure(() => ask('x', { session_id: `0.${'0'.repeat(16)}.${'0'.repeat(48)}` })),
    };
  },

  async key() {
    return failure(() => client.models.list());
  },

  // Leaving the loop closes the stream.
  async cancel() {
    for await (const chunk of await ask(text, { stream: true })) if (chunk.choices[0].delta.content) return 'left';
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
