package demoactors

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

// opening is the balance of a new account.
const opening = 500

// The outcomes of a transfer, and of one posting.
const (
	open      = ""          // it is not finished
	done      = "done"      //
	refused   = "refused"   // the account had too little money
	cancelled = "cancelled" // it had not begun when its client gave it up
)

// registration is the response to GET /dapr/config. Transfers are deactivated after ten idle seconds, and accounts
// after an idle hour.
const registration = `{"entities": ["Account", "Transfer"], "actorIdleTimeout": "1h", ` +
	`"entitiesConfig": [{"entities": ["Transfer"], "actorIdleTimeout": "10s"}]}`

// transfer is an order of a client, and the state of a transfer actor.
type transfer struct {
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Amount   int    `json:"amount,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Reminded bool   `json:"reminded,omitempty"` // the reminder has finished it
}

// posting is one half of a transfer: a change of the balance of one account.
type posting struct {
	Transfer string `json:"transfer"`
	Amount   int    `json:"amount"` // negative = a withdrawal
}

// bank is the application. It keeps no state in memory, so it has nothing to do when an actor is deactivated.
type bank struct {
	node  demokit.Sidecar
	turns turns
}

// serve runs the application until ctx ends.
func serve(ctx context.Context) error {
	b := bank{node: demokit.Beside(), turns: turns{dir: os.Getenv(turnsVariable)}}
	return demokit.Serve(ctx, b.handler())
}

func (b *bank) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dapr/config", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(registration)) // the node asks again
	})
	mux.HandleFunc("DELETE /actors/{type}/{id}", func(http.ResponseWriter, *http.Request) {})
	turn(b, mux, "Account", "post", b.post)
	turn(b, mux, "Account", "balance", func(ctx context.Context, id string, _ struct{}) (int, error) {
		return b.balance(ctx, id)
	})
	turn(b, mux, "Transfer", "book", b.book)
	turn(b, mux, "Transfer", "close", b.close)
	turn(b, mux, "Transfer", "remind/finish", b.remind)
	return mux
}

// turn adds a handler to mux for one method of the actors of type kind. The handler runs f as a turn of the actor, and
// returns status 502 if f fails.
func turn[In, Out any](b *bank, mux *http.ServeMux, kind, method string,
	f func(ctx context.Context, id string, in In) (Out, error)) {
	mux.HandleFunc("PUT /actors/"+kind+"/{id}/method/"+method, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		end, err := b.turns.begin(kind+"-"+r.PathValue("id"), r.Header.Get("Quorate-Actor-Epoch"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer end()
		out, err := f(r.Context(), r.PathValue("id"), in)
		if err != nil {
			http.Error(w, strings.TrimSpace(err.Error()), http.StatusBadGateway)
			return
		}
		if strings.HasPrefix(method, "remind/") {
			w.Header().Set("X-DaprReminderCancel", "true")
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the caller may have gone away
	})
}

// post changes the balance of an account by the amount of p. If it is called again for the same transfer, it changes
// nothing and returns the outcome of the first call.
func (b *bank) post(ctx context.Context, account string, p posting) (outcome string, err error) {
	if err := b.get(ctx, "Account", account, "transfer-"+p.Transfer, &outcome); err != nil || outcome != open {
		return outcome, err
	}
	balance, err := b.balance(ctx, account)
	if err != nil {
		return open, err
	}
	outcome = done
	if balance+p.Amount < 0 {
		outcome, p.Amount = refused, 0
	}
	return outcome, b.save(ctx, "Account", account, map[string]any{"balance": balance + p.Amount,
		"transfer-" + p.Transfer: outcome})
}

func (b *bank) balance(ctx context.Context, account string) (int, error) {
	balance := opening
	err := b.get(ctx, "Account", account, "balance", &balance)
	return balance, err
}

// book makes a transfer and returns it with its outcome. It returns an error if the order is invalid. If the transfer
// was interrupted earlier, book continues it with the order that was saved then.
func (b *bank) book(ctx context.Context, id string, order transfer) (transfer, error) {
	if order.From == order.To || order.Amount <= 0 {
		return order, errors.New("a transfer needs two accounts and a positive amount")
	}
	var t transfer
	if err := b.get(ctx, "Transfer", id, "order", &t); err != nil || t.Outcome != open {
		return t, err
	}
	const reminder = "/reminders/finish"
	if t.From == "" {
		t = transfer{From: order.From, To: order.To, Amount: order.Amount}
		if err := b.send(ctx, http.MethodPost, "Transfer/"+id+reminder, map[string]string{"dueTime": "3s",
			"period": "3s"}, nil); err != nil {
			return t, err
		}
		if err := b.save(ctx, "Transfer", id, map[string]any{"order": t}); err != nil {
			return t, err
		}
	}
	t, err := b.finish(ctx, id, t)
	if err != nil {
		return t, err
	}
	return t, b.send(ctx, http.MethodDelete, "Transfer/"+id+reminder, nil, nil)
}

// finish posts a transfer at its accounts and saves the outcome.
func (b *bank) finish(ctx context.Context, id string, t transfer) (transfer, error) {
	outcome, err := b.postAt(ctx, t.From, posting{Transfer: id, Amount: -t.Amount})
	if err == nil && outcome == done {
		outcome, err = b.postAt(ctx, t.To, posting{Transfer: id, Amount: t.Amount})
	}
	if err != nil {
		return t, err
	}
	t.Outcome = outcome
	return t, b.save(ctx, "Transfer", id, map[string]any{"order": t})
}

func (b *bank) postAt(ctx context.Context, account string, p posting) (outcome string, err error) {
	err = b.send(ctx, http.MethodPut, "Account/"+account+"/method/post", p, &outcome)
	return outcome, err
}

// remind handles the reminder of a transfer. If the transfer has a saved order but no outcome, remind finishes it. If
// there is no saved order, the transfer has not begun, and remind changes nothing.
func (b *bank) remind(ctx context.Context, id string, _ struct{}) (t transfer, err error) {
	if err := b.get(ctx, "Transfer", id, "order", &t); err != nil || t.From == "" || t.Outcome != open {
		return t, err
	}
	t.Reminded = true
	return b.finish(ctx, id, t)
}

// close returns the state of a transfer. If the transfer has not begun, close cancels it, so that it cannot begin
// later.
func (b *bank) close(ctx context.Context, id string, _ struct{}) (t transfer, err error) {
	if err := b.get(ctx, "Transfer", id, "order", &t); err != nil || t.From != "" || t.Outcome != open {
		return t, err
	}
	t.Outcome = cancelled
	return t, b.save(ctx, "Transfer", id, map[string]any{"order": t})
}

// get reads one key of the state of an actor. If the key does not exist, out is not changed.
func (b *bank) get(ctx context.Context, kind, id, key string, out any) error {
	return b.send(ctx, http.MethodGet, kind+"/"+id+"/state/"+key, nil, out)
}

// save writes keys of the state of an actor in one transaction.
func (b *bank) save(ctx context.Context, kind, id string, values map[string]any) error {
	type request struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	}
	type operation struct {
		Operation string  `json:"operation"`
		Request   request `json:"request"`
	}
	var all []operation
	for key, value := range values {
		all = append(all, operation{"upsert", request{key, value}})
	}
	return b.send(ctx, http.MethodPut, kind+"/"+id+"/state", all, nil)
}

// send sends a request about an actor to the node.
func (b *bank) send(ctx context.Context, verb, path string, in, out any) error {
	return b.node.Send(ctx, verb, "/actors/"+path, in, out)
}
