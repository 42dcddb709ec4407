"""The application stock counts what is left of each item, and reports to orders.

It needs only Python 3 and no addresses or database drivers: it reaches its state and
other applications through the API of the node beside it, at DAPR_HTTP_PORT.
Run it with:  quorate run --app-id stock --app-port 8080 -- python3 stock.py
"""
import http.server
import json
import os
import urllib.error
import urllib.request

API = "http://127.0.0.1:%s/v1.0" % os.environ["DAPR_HTTP_PORT"]
ME = "stock in Python at " + os.environ.get("DEMO_NODE", "this node")
INITIAL = 1000  # of each item


def call(verb, path, body=None):
    """Sends a request to the node; returns status, ETag and the decoded body, or None."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(API + path, data, {"Content-Type": "application/json"}, method=verb)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
        return answer.status, answer.headers["ETag"], json.loads(text) if text else None


def left(item):
    """Returns what is left of an item, and its ETag; None before the first was taken."""
    status, etag, count = call("GET", "/state/statestore/%s?consistency=strong" % item)
    return (INITIAL, None) if status == 204 else (count, etag)


def take(item, count):
    """Lowers the count of an item; the ETag prevents a lost update."""
    while True:
        have, etag = left(item)
        if have < count:
            raise ValueError("too little %s is left" % item)
        new = {"key": item, "value": have - count, "options": {"concurrency": "first-write", "consistency": "strong"}}
        if etag:
            new["etag"] = etag
        try:
            call("POST", "/state/statestore", [new])
            return have - count
        except urllib.error.HTTPError as e:
            if e.code != 409:  # 409: another request was faster, read again
                raise


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # /left/{item}
        self.answer(lambda: {"left": left(self.path.rpartition("/")[2])[0]})

    def do_POST(self):  # /take
        self.answer(lambda: self.serve(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def serve(self, order):
        taken = {"order": order["id"], "left": take(order["item"], order["count"]), "by": ME}
        if order["id"] == "first":
            print("%s asks for %s; now to call orders" % (self.headers["dapr-caller-app-id"], order), flush=True)
        call("POST", "/invoke/orders/method/taken", taken)  # by app id, on any node
        return taken

    def answer(self, work):
        try:
            status, body = 200, work()
        except urllib.error.HTTPError as e:
            status, body = 502, {"error": "%s: %s" % (e.url, e.read().decode())}
        except Exception as e:  # the caller gets every error
            status, body = 502, {"error": str(e)}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


Server(("127.0.0.1", int(os.environ["APP_PORT"])), Handler).serve_forever()
