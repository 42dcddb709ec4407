package http_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"

	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/testutil"
)

// largeAnswer is the approximate size in bytes of the large answers in these tests. A list of jobs reserves three times
// as much, and thus memory for large requests. The other answers reserve memory for small requests.
const largeAnswer = 400 << 10

// largeSecret is a secret store with one large secret.
type largeSecret struct{}

func (largeSecret) Get(context.Context, string, map[string]string) (map[string]string, error) {
	return map[string]string{"a": strings.Repeat("x", largeAnswer)}, nil
}

func (s largeSecret) Bulk(ctx context.Context, _ map[string]string) (map[string]map[string]string, error) {
	secret, err := s.Get(ctx, "a", nil)
	return map[string]map[string]string{"a": secret}, err
}

func (largeSecret) Close() error { return nil }

// large is a request with a large answer.
type large struct {
	method, path, body string
	acts               bool // the request may change something
}

// newLarge returns a fixture with a memory budget for answers, and requests that have large answers.
func newLarge(t *testing.T, answers admission.Options) (*fixture, map[string]large) {
	t.Helper()
	f := newFixture(t)
	f.Secrets.List = append(f.Secrets.List,
		&secretstores.Instance{Name: "large", Type: "secretstores.test", Store: largeSecret{}})
	f.refit()
	f.config.Actors = apitest.ActorsElsewhere(f.App, func(context.Context) (actors.Answer, error) {
		return actors.Answer{Status: http.StatusOK, Header: http.Header{"Content-Encoding": {"br"}},
			Body: make([]byte, largeAnswer)}, nil
	})
	text, half := strings.Repeat("x", largeAnswer), strings.Repeat("x", largeAnswer/2)
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprintf(`{"key":"%d%s","value":1}`, i, text[:largeAnswer/1000]))
	}
	face := newFace(t, f)
	for _, c := range [][3]string{
		{"POST", "/v1.0/state/orders", "[" + strings.Join(items, ",") + "]"},
		{"POST", "/v1.0/jobs/j", `{"dueTime":"1h","data":"` + text + `"}`},
		{"POST", "/v1.0/configuration/items", fmt.Sprintf(`[{"key":"a","value":%q},{"key":"b","value":%[1]q}]`, half)},
		{"POST", "/v1.0/workflows/any/w/start?instanceID=w", text},
	} {
		if w := call(t, face, c[0], c[1], c[2]); w.Code >= http.StatusMultipleChoices {
			t.Fatalf("%s %s: %d %s", c[0], c[1], w.Code, w.Body)
		}
	}
	answers.Name, answers.Registerer = "answers", f.Metrics
	f.config.Answers, f.config.Registerer = admission.New(answers), prometheus.NewRegistry()
	entry := func(id string) string { return `{"entryId":"` + id + `","event":"e","contentType":"text/plain"}` }
	return f, map[string]large{
		"list of keys":  {"GET", "/v1.0/state/orders?limit=1000", "", false},
		"list of jobs":  {"GET", "/v1.0/jobs", "", false},
		"job":           {"GET", "/v1.0/jobs/j", "", false},
		"configuration": {"GET", "/v1.0/configuration/items", "", false},
		"secret":        {"GET", "/v1.0/secrets/large/a", "", false},
		"secrets":       {"GET", "/v1.0/secrets/large/bulk", "", false},
		"workflow":      {"GET", "/v1.0/workflows/any/w", "", false},
		"actor":         {"POST", "/v1.0/actors/Counter/a/method/add", "", true},
		"actor, by GET": {"GET", "/v1.0/actors/Counter/a/method/get", "", true},
		"binding":       {"POST", "/v1.0/bindings/events", `{"operation":"create","data":"` + text + `"}`, true},
		"bulk publish": {"POST", "/v1.0/publish/bulk/faulty/half",
			"[" + entry("a") + "," + entry(text) + "]", true},
	}
}

// smallBuffers accepts connections on which the kernel buffers little of an answer.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetWriteBuffer(4 << 10)
}

// Clients request large answers and read nothing. The answers take no more than their memory budget, and the slowest
// clients are cut when another client needs the memory.
func TestAnswers_SilentClientsAreCut(t *testing.T) {
	const clients, budget = 8, 8 << 20 // the answers of at most five clients fit into the budget
	f, requests := newLarge(t, admission.Options{Bytes: budget})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.Open(t, httpserver.Config{Listener: smallBuffers{listener}, Handler: newFace(t, f)})
	value := func(name string) float64 {
		return gathered(t, f.Metrics, "quorate_request_memory_"+name, "answers")
	}
	for name, c := range requests {
		t.Run(name, func(t *testing.T) {
			before := value("cut_total")
			var silent []net.Conn
			for range clients {
				silent = append(silent, servertest.Send(t, server, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\n"+
					"Connection: close\r\nContent-Length: %d\r\n\r\n%s", c.method, c.path, len(c.body), c.body)))
			}
			testutil.Eventually(t, func() error {
				for _, bytes := range []int64{largeAnswer, 3 * largeAnswer} {
					more := f.config.Answers.Share()
					if !more.TryAdd(bytes) {
						return nil
					}
					more.Release()
				}
				return fmt.Errorf("only %v bytes are reserved", value("bytes"))
			})
			testutil.Eventually(t, func() error {
				if n := value("bytes"); n > budget {
					t.Errorf("%v bytes are reserved", n)
				}
				_, _, body := do(t, c.method, "http://"+server.Addr().String()+c.path, c.body)
				if len(body) < largeAnswer {
					return errors.New(body)
				}
				return nil
			})
			if value("cut_total") == before {
				t.Error("no client was cut")
			}
			cut := 0
			for _, conn := range silent {
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil {
					_, err = io.Copy(io.Discard, answer.Body)
				}
				if err != nil {
					cut++
				}
			}
			if cut == 0 {
				t.Error("each client got a complete answer")
			}
			testutil.Eventually(t, func() error {
				if n := value("bytes"); n != 0 {
					return fmt.Errorf("%v bytes stay reserved", n)
				}
				return nil
			})
		})
	}
}

// If there is no memory for a large answer, a read reports that it can be repeated. A request that may have changed
// something reports that it was executed.
func TestAnswers_RefusedWithoutMemory(t *testing.T) {
	f, requests := newLarge(t, admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1,
		LargeTarget: 1, Penalty: 1})
	face := newFace(t, f)
	others := f.config.Answers.Share()
	for _, bytes := range []int64{6 << 20, admission.SmallRequest, admission.SmallRequest, admission.SmallRequest,
		admission.SmallRequest} {
		if !others.TryAdd(bytes) {
			t.Fatal("the budget is not empty")
		}
	}
	for name, c := range requests {
		want := `"reason":"overloaded"`
		if c.acts {
			want = `"reason":"indeterminate"`
		}
		w := call(t, face, c.method, c.path, c.body)
		if text := w.Body.String(); w.Code != http.StatusInternalServerError ||
			!strings.Contains(text, `"ERR_OVERLOADED"`) || !strings.Contains(text, want) ||
			strings.Contains(text, "was executed") != c.acts {
			t.Errorf("%s: %d %.300s", name, w.Code, text)
		}
		if encoding := w.Header().Get("Content-Encoding"); encoding != "" {
			t.Errorf("%s: the error has the encoding %s of the answer", name, encoding)
		}
	}
	if w := call(t, face, "GET", "/v1.0/configuration/items?key=none", ""); w.Code != http.StatusNoContent {
		t.Errorf("a small answer: %d %s", w.Code, w.Body)
	}
	others.Release()
	for name, c := range requests {
		if w := call(t, face, c.method, c.path, c.body); w.Body.Len() < largeAnswer {
			t.Errorf("%s, with memory: %d %.300s", name, w.Code, w.Body)
		}
	}
}

// othersAreServed waits until the server sends an answer to a silent client, and then until another client gets its
// answer to the same request.
func othersAreServed(t *testing.T, f *fixture, server *httpserver.Server, c large) {
	t.Helper()
	testutil.Eventually(t, func() error {
		if gathered(t, f.Metrics, "quorate_request_memory_bytes", "answers") == 0 {
			return errors.New("there is no answer")
		}
		return nil
	})
	testutil.Eventually(t, func() error {
		if _, _, body := do(t, c.method, "http://"+server.Addr().String()+c.path, c.body); len(body) < largeAnswer {
			return errors.New(body)
		}
		return nil
	})
}

// A client that reads nothing of its answer is also cut if others need the memory of its request.
func TestAnswers_SilentClientKeepsNoMemoryOfItsRequest(t *testing.T) {
	f, requests := newLarge(t, admission.Options{})
	f.config.Requests = admission.New(admission.Options{Name: "requests", Bytes: 2 << 20, Registerer: f.Metrics})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.Open(t, httpserver.Config{Listener: smallBuffers{listener}, Handler: newFace(t, f)})
	c := requests["binding"]
	servertest.Send(t, server, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
		c.method, c.path, len(c.body), c.body))
	othersAreServed(t, f, server, c)
	if gathered(t, f.Metrics, "quorate_request_memory_cut_total", "requests") == 0 {
		t.Error("the silent client was not cut")
	}
}

// headOf reads the frames of a connection until the head of an answer.
func headOf(t *testing.T, f *http2.Framer) {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := frame.(*http2.HeadersFrame); ok {
			return
		}
	}
}

// An answer that needs no reservation itself waits for a window of HTTP/2. Its client keeps no memory that others need.
func TestAnswers_SmallAnswersOverHTTP2KeepNoMemory(t *testing.T) {
	const size = 8 << 10
	text := strings.Repeat("x", size)
	for name, c := range map[string]struct {
		setup, request  large
		answers, others int64 // sizes of the budgets, with room for one request at a time
		cut             string
	}{
		"bulk get": {large{"POST", "/v1.0/state/orders", `[{"key":"a","value":"` + text + `"}]`, true},
			large{"POST", "/v1.0/state/orders/bulk", `{"keys":["a"]}`, false}, 1 << 20, 0, ""},
		"list of jobs": {large{"POST", "/v1.0/jobs/j", `{"dueTime":"1h","data":"` + text + `"}`, true},
			large{"GET", "/v1.0/jobs", "", false}, 160 << 10, 0, "answers"},
		"binding with a large body": {large{}, large{"POST", "/v1.0/bindings/events",
			`{"operation":"create","data":"` + text + `"}` + strings.Repeat(" ", largeAnswer), true}, 0, 2 << 20,
			"requests"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.setup.path != "" {
				if w := call(t, newFace(t, f), c.setup.method, c.setup.path, c.setup.body); w.Code >= 300 {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
			}
			f.config.Registerer = prometheus.NewRegistry()
			f.config.Answers = admission.New(admission.Options{Name: "answers", Bytes: c.answers,
				Registerer: f.Metrics})
			f.config.Requests = admission.New(admission.Options{Name: "requests", Bytes: c.others,
				Registerer: f.Metrics})
			server := servertest.Open(t, httpserver.Config{WriteStall: time.Hour, Handler: newFace(t, f)})
			r := c.request
			headOf(t, servertest.Send2(t, server, 0, r.method, r.path, r.body))
			testutil.Eventually(t, func() error {
				status, _, body := do(t, r.method, "http://"+server.Addr().String()+r.path, r.body)
				if status != http.StatusOK || len(body) < size {
					return fmt.Errorf("%d %s", status, body)
				}
				return nil
			})
			for _, budget := range []string{"answers", "requests"} {
				cuts := gathered(t, f.Metrics, "quorate_request_memory_cut_total", budget)
				if (cuts > 0) != (budget == c.cut) {
					t.Errorf("the budget for %s has cut %v clients", budget, cuts)
				}
			}
		})
	}
}

// A client over HTTP/2 opens large windows, and then reads nothing from its connection. The end of its stream cannot
// be sent either. Its connection is closed when others need the memory.
func TestAnswers_SilentHTTP2ConnectionIsClosed(t *testing.T) {
	f, requests := newLarge(t, admission.Options{Bytes: 2 << 20}) // one answer at a time
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	server := servertest.Open(t, httpserver.Config{WriteStall: time.Hour, Listener: smallBuffers{listener},
		Handler: newFace(t, f)})
	c := requests["secret"]
	silent := servertest.Send2(t, server, 1<<20, c.method, c.path, c.body)
	othersAreServed(t, f, server, c)
	for err = error(nil); err == nil; {
		_, err = silent.ReadFrame()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open")
	}
}
