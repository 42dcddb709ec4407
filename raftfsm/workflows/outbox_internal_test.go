package workflows

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// deadGroup is a group whose entries are applied nowhere, and a Sender that cannot reach instances whose id begins with
// "dead".
type deadGroup struct {
	records.Group
	sent chan string
}

func (deadGroup) Leading() bool { return true }
func (deadGroup) Term() uint64  { return 1 }
func (deadGroup) Now() uint64   { return 1 }

func (deadGroup) Commit(context.Context, *command.Request) (kv.Result, error) {
	return kv.Result{}, nil
}

func (g deadGroup) Locate(_ context.Context, r Ref) (uint32, error) {
	if strings.HasPrefix(r.ID, "dead") {
		return 0, fault.New(fault.Unavailable, "test", "the group has no leader")
	}
	return 7, nil
}

func (g deadGroup) Ask(_ context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	g.sent <- string(body)
	return nil, false, nil
}

// openOutbox returns a Keeper that leads and has only an outbox.
func openOutbox(g deadGroup) *Keeper {
	k := NewKeeper(Options{Sender: g})
	k.group, k.machine, k.term = g, &kv.Machine{}, 1
	return k
}

func (k *Keeper) mail(id string, n int, event []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	from := Ref{"shop", "a"}
	k.outbox.add(k, &message{from: from, key: from.outboxKey(1, n), outRecord: outRecord{to: Ref{"bank", id},
		key: fmt.Sprint(n), event: event}})
}

func TestOutbox_UnreachableTargetsDoNotKeepTheSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := deadGroup{sent: make(chan string, 1000)}
		k := openOutbox(g)
		for n := range 3 * maxSenders {
			k.mail(fmt.Sprint("dead", n), n, nil)
		}
		k.mail("alive", 1000, nil)
		if got := <-g.sent; !strings.Contains(got, "alive") {
			t.Errorf("sent %q", got)
		}
		k.Close()
	})
}

func TestOutbox_KeepsAFewMessagesInMemory(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			k, event := openOutbox(deadGroup{sent: make(chan string, 1000)}), make([]byte, size)
			for n := range maxMessages + 100 {
				k.mail("dead", n, event)
			}
			k.mu.Lock()
			if o := &k.outbox; len(o.known) > maxMessages || o.bytes > maxOutbox+size || len(o.more) != 1 {
				t.Errorf("%d messages of %d bytes in memory, more in %v", len(o.known), o.bytes, o.more)
			}
			k.mu.Unlock()
			k.Close()
		})
	}
}
