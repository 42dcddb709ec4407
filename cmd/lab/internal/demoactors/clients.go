package demoactors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	accounts = 24
	clients  = 8
	rate     = 50 * time.Millisecond // between two calls of a client
)

func account(i int) string { return fmt.Sprintf("a%02d", i%accounts) }

// ledger records what the clients know about their transfers. It is safe for concurrent use.
type ledger struct {
	mu           sync.Mutex
	orders       map[string]transfer // all that were ever sent
	acknowledged map[string]transfer
	again        int   // acknowledged transfers that were sent again
	failed       int   // calls
	repeated     int   // failed calls that were repeated
	wrong        error // the first response that contradicts an earlier one
}

func (l *ledger) sent(id string, t transfer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[id] = t
}

func (l *ledger) acknowledge(id string, t transfer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, ok := l.acknowledged[id]; ok {
		if l.again++; first != t && l.wrong == nil {
			l.wrong = fmt.Errorf("the transfer %s was acknowledged with %+v, and later with %+v", id, first, t)
		}
		return
	}
	l.acknowledged[id] = t
}

func (l *ledger) fail(repeats bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	if repeats {
		l.repeated++
	}
}

// call calls a method of an actor through the node with the given number. If that node is down, it tries the next
// one.
func (d *demo) call(ctx context.Context, at int, actor, method string, in, out any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	for range d.cluster.Nodes {
		err = d.cluster.Nodes[at%size].Call(ctx, http.MethodPost, "/v1.0/actors/"+actor+"/method/"+method,
			string(text), out)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		at++
	}
	return err
}

// client sends numbered transfers until stop is closed. If a transfer with an even number fails, client repeats it with
// the same id until it is acknowledged. If a transfer with an odd number fails, client does not repeat it, as if the
// client had died. In addition, client sends every eighth transfer a second time.
func (d *demo) client(ctx context.Context, number int, stop <-chan struct{}) {
	tick := time.NewTicker(rate)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		from := number*3 + i*7
		id, order := fmt.Sprintf("t%d-%d", number, i), transfer{From: account(from),
			To: account(from + 1 + i%(accounts-1)), Amount: 1 + i*131%300}
		d.ledger.sent(id, order)
		for attempt := 0; ; attempt++ {
			err := d.book(ctx, number+i+attempt, id, order)
			if err == nil {
				break
			}
			repeats := i%2 == 0
			d.ledger.fail(repeats)
			if !repeats || ctx.Err() != nil {
				break
			}
			<-tick.C
		}
		if i%8 == 1 && ctx.Err() == nil {
			_ = d.book(ctx, number+i+1, id, order) // the audit compares both responses
		}
	}
}

func (d *demo) book(ctx context.Context, at int, id string, order transfer) error {
	var got transfer
	err := d.call(ctx, at, "Transfer/"+id, "book", order, &got)
	if err == nil {
		got.Reminded = false // it is another fact about the same transfer
		d.ledger.acknowledge(id, got)
	}
	return err
}
