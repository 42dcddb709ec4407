package workflows

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// deadGroup is a group that reports success for entries, but applies none. It is also a Sender that cannot reach
// instances whose id begins with "dead".
type deadGroup struct {
	records.Group
	sent    chan string
	commits chan struct{} // if not nil, Commit first receives from this channel
}

func (deadGroup) Leading() bool { return true }
func (deadGroup) Term() uint64  { return 1 }
func (deadGroup) Now() uint64   { return 1 }

func (g deadGroup) Commit(context.Context, *command.Request) (kv.Result, error) {
	if g.commits != nil {
		<-g.commits
	}
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

// openOutbox returns a Keeper that leads the group g, for a test of its outbox.
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

// After a restore within a term, the Keeper resigns and reads again. The removal of a sent message and the sending of
// another message are then still under way. When they end, they do not change what the Keeper has read since.
func TestOutbox_WorkBeforeRestoreChangesNothingAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := deadGroup{sent: make(chan string), commits: make(chan struct{})}
		k := openOutbox(g)
		k.mail("alive", 1, nil)
		<-g.sent
		proposed := time.NewTimer(2 * flushPause) // the removal is proposed by then
		<-proposed.C
		k.mail("other", 2, nil)
		synctest.Wait() // the second message is being sent
		k.mu.Lock()
		m := k.machine
		k.resign()
		k.machine = m
		k.mu.Unlock()
		k.mail("other", 3, nil)
		k.mail("other", 4, nil)
		close(g.commits)
		for range 3 {
			<-g.sent
		}
		synctest.Wait()
		k.mu.Lock()
		if o := &k.outbox; o.senders != 0 || len(o.targets) != 0 || len(o.sent) != 2 {
			t.Errorf("%d senders, %d targets, and %d sent messages, want 0, 0 and 2", o.senders, len(o.targets),
				len(o.sent))
		}
		k.mu.Unlock()
		k.Close()
	})
}

// Messages for one instance are added when its sender has just sent the last message. Each message is sent once, by
// one sender.
func TestOutbox_SendsEachMessageToBusyTarget(t *testing.T) {
	const messages = maxMessages / 2
	g := deadGroup{sent: make(chan string, 2*messages)}
	k := openOutbox(g)
	defer k.Close()
	for n := range messages {
		k.mail("parent", n, nil)
		for len(g.sent) < n-2 {
			runtime.Gosched()
		}
	}
	testutil.Eventually(t, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if o := &k.outbox; len(o.targets) > 0 || o.senders != 0 {
			return fmt.Errorf("%d targets and %d senders", len(o.targets), o.senders)
		}
		return nil
	})
	if n := len(g.sent); n != messages {
		t.Errorf("%d messages were sent, want %d", n, messages)
	}
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
