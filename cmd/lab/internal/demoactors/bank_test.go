package demoactors

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

// fakeNode is a node that fails one request, before or after it has had its effect, as if the node had died.
type fakeNode struct {
	app       http.Handler
	state     map[string]json.RawMessage // by "type/id/key"
	reminders map[string]bool            // by "type/id/name"
	requests  int
	fails     int // number of the request that fails; 0 = none
	after     bool
}

// newBank returns a bank and the node beside it.
func newBank(t *testing.T) (*bank, *fakeNode) {
	t.Helper()
	n := &fakeNode{state: map[string]json.RawMessage{}, reminders: map[string]bool{}}
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	b := &bank{node: demokit.Sidecar{Base: server.URL + "/v1.0", Client: server.Client()},
		turns: turns{dir: t.TempDir()}}
	n.app = b.handler()
	return b, n
}

func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.requests++
	fails := n.requests == n.fails
	if fails && !n.after {
		http.Error(w, "the node died", http.StatusInternalServerError)
		return
	}
	body, _ := io.ReadAll(r.Body)
	answer := httptest.NewRecorder()
	n.do(answer, r, body)
	if fails {
		http.Error(w, "the node died", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

func (n *fakeNode) do(w http.ResponseWriter, r *http.Request, body []byte) {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/v1.0/actors/"), "/", 4)
	actor := parts[0] + "/" + parts[1] + "/"
	switch {
	case parts[2] == "method":
		n.app.ServeHTTP(w, turnOf(actor+"method/"+parts[3], string(body)))
	case parts[2] == "reminders":
		n.reminders[actor+parts[3]] = r.Method != http.MethodDelete
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet:
		_, _ = w.Write(n.state[actor+parts[3]])
	default:
		var changes []struct {
			Request struct {
				Key   string
				Value json.RawMessage
			}
		}
		if err := json.Unmarshal(body, &changes); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, c := range changes {
			n.state[actor+c.Request.Key] = c.Request.Value
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// call calls a method, as the node calls the application.
func (n *fakeNode) call(actor, method, body string) (int, string) {
	w := httptest.NewRecorder()
	n.app.ServeHTTP(w, turnOf(actor+"/method/"+method, body))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// turnOf returns the request for a turn of an actor, as a node sends it.
func turnOf(path, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPut, "/actors/"+path, strings.NewReader(body))
	r.Header.Set("Quorate-Actor-Epoch", "1")
	return r
}

// balances returns the balances of the accounts a and b.
func (n *fakeNode) balances() string {
	_, a := n.call("Account/a", "balance", "{}")
	_, b := n.call("Account/b", "balance", "{}")
	return a + " " + b
}

const order = `{"from":"a","to":"b","amount":200}`

// A transfer that is interrupted at any step, and then continued by its reminder or by its client, is booked once.
func TestBook_InterruptedAnywhereBooksOnce(t *testing.T) {
	for _, after := range []bool{false, true} {
		for _, client := range []bool{false, true} {
			for fails := 1; ; fails++ {
				name := fmt.Sprintf("request %d fails, after its effect %v, repeated %v", fails, after, client)
				_, n := newBank(t)
				n.fails, n.after = fails, after
				status, _ := n.call("Transfer/t", "book", order)
				if n.requests < fails {
					break // no request has failed
				}
				if status != http.StatusBadGateway {
					t.Errorf("%s: status %d", name, status)
				}
				_, begun := n.state["Transfer/t/order"]
				if begun && !n.reminders["Transfer/t/finish"] &&
					!strings.Contains(string(n.state["Transfer/t/order"]), done) {
					t.Errorf("%s: no reminder will finish the transfer", name)
				}
				want := "500 500"
				if client || begun {
					want = "300 700"
				}
				for range 2 {
					if client {
						status, _ = n.call("Transfer/t", "book", order)
					} else {
						status, _ = n.call("Transfer/t", "remind/finish", "{}")
					}
					if got := n.balances(); status != http.StatusOK || got != want {
						t.Errorf("%s: status %d, balances %s, want %s", name, status, got, want)
					}
				}
			}
		}
	}
}

func TestBook_Outcomes(t *testing.T) {
	_, n := newBank(t)
	for _, c := range []struct{ method, body, want, balances string }{
		{"Transfer/1 book", `{"from":"a","to":"b","amount":300}`, `"outcome":"done"`, "200 800"},
		{"Transfer/2 book", `{"from":"a","to":"b","amount":300}`, `"outcome":"refused"`, "200 800"},
		{"Transfer/3 book", `{"from":"b","to":"a","amount":300}`, `"outcome":"done"`, "500 500"},
		{"Transfer/2 book", `{"from":"a","to":"b","amount":300}`, `"outcome":"refused"`, "500 500"},
		{"Transfer/1 book", `{"from":"b","to":"a","amount":9}`, `"amount":300,"outcome":"done"`, "500 500"},
		{"Transfer/4 close", `{}`, `"outcome":"cancelled"`, "500 500"},
		{"Transfer/4 book", `{"from":"a","to":"b","amount":300}`, `"outcome":"cancelled"`, "500 500"},
		{"Transfer/5 book", `{"from":"a","to":"a","amount":300}`, "needs two accounts", "500 500"},
		{"Transfer/6 book", `{"from":"a","to":"b","amount":-1}`, "a positive amount", "500 500"},
		{"Transfer/7 remind/finish", `{}`, `{}`, "500 500"},
	} {
		actor, method, _ := strings.Cut(c.method, " ")
		if _, got := n.call(actor, method, c.body); !strings.Contains(got, c.want) || n.balances() != c.balances {
			t.Errorf("%s %s: %s, balances %s", c.method, c.body, got, n.balances())
		}
	}
	for name, on := range n.reminders {
		if on {
			t.Errorf("the reminder %s was not removed", name)
		}
	}
}

func TestTurns_FindOverlap(t *testing.T) {
	bank := turns{dir: t.TempDir()}
	begin := func(epoch string) (end func()) {
		end, err := bank.begin("Account-a", epoch)
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	begin("1")()
	begin("1")()
	if n, beside, err := bank.count(); n != 2 || beside != 0 || err != nil {
		t.Errorf("%d turns, %d beside others, %v", n, beside, err)
	}
	first := begin("1")
	second := begin("2")
	if n, beside, err := bank.count(); n != 4 || beside != 1 || err != nil {
		t.Errorf("%d turns, %d beside others, %v", n, beside, err)
	}
	first()
	if _, err := bank.begin("Account-a", "2"); err == nil {
		t.Error("two turns of one owner at once")
	}
	second()
	if _, _, err := bank.count(); err == nil || !strings.Contains(err.Error(), "Account-a, epoch 2") {
		t.Errorf("the overlap is not reported: %v", err)
	}
	bank.dir = t.TempDir()
	if _, err := bank.begin("Account-a", ""); err == nil {
		t.Error("a turn without an epoch")
	}
}

func TestCompare_FindsWrongBooks(t *testing.T) {
	balances := func(a, b int) []int { return []int{opening + a, opening + b} }
	ok := transfer{From: account(0), To: account(1), Amount: 7, Outcome: done}
	no := ok
	no.Outcome = refused
	for _, c := range []struct {
		name                   string
		acknowledged, outcomes map[string]transfer
		balances               []int
		good                   bool
	}{
		{"done", map[string]transfer{"t": ok}, map[string]transfer{"t": ok}, balances(-7, 7), true},
		{"refused", map[string]transfer{"t": no}, map[string]transfer{"t": no}, balances(0, 0), true},
		{"not acknowledged", nil, map[string]transfer{"t": ok}, balances(-7, 7), true},
		{"lost", map[string]transfer{"t": ok}, map[string]transfer{"t": no}, balances(0, 0), false},
		{"booked twice", map[string]transfer{"t": ok}, map[string]transfer{"t": ok}, balances(-14, 14), false},
		{"one half", map[string]transfer{"t": ok}, map[string]transfer{"t": ok}, balances(-7, 0), false},
	} {
		if err := compare(c.acknowledged, c.outcomes, c.balances); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
