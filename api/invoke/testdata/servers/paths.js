// Answers each request with the parts of its path, as servers that run on Node find them.
const http = require('http');
const { parse } = require('url');

const parts = (path) => path.split('/').slice(1).map(decodeURIComponent);
const attempt = (read) => { try { return read(); } catch { return null; } };

const server = http.createServer((request, response) => {
  response.end(JSON.stringify({
    'node url': attempt(() => parts(request.url.split('?')[0])),
    'node URL': attempt(() => parts(new URL(request.url, 'http://localhost').pathname)),
    'node url.parse': attempt(() => parts(parse(request.url).pathname)),
  }));
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit()).resume(); // the test has ended
