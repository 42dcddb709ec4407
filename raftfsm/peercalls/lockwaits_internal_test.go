package peercalls

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// waitingPeer answers calls that wait for a lock when the caller gives up, and all other calls at once.
type waitingPeer struct{}

func (p waitingPeer) Wait(ctx context.Context, server, method string, payload []byte) ([]byte, error) {
	return p.Call(ctx, server, method, payload)
}

func (waitingPeer) Call(ctx context.Context, _, method string, _ []byte) ([]byte, error) {
	if method == MethodLockWait {
		<-ctx.Done()
		return nil, fault.New(fault.Timeout, "test", "the caller has given up")
	}
	return nil, nil
}

func TestAsk_LimitsCallsThatWaitForLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewLeaderClient(waitingPeer{}, uncounted{}, noLeader{})
		defer c.Close()
		ask := func(ctx context.Context, to raft.ServerID, method string) error {
			_, err := c.Ask(ctx, to, 0, method, nil)
			return err
		}
		ctx, giveUp := context.WithCancel(t.Context())
		for range maxLockWaits {
			go func() { _ = ask(ctx, "a", MethodLockWait) }()
		}
		synctest.Wait()
		if err := ask(ctx, "a", MethodLockWait); !fault.Is(err, fault.Overloaded) {
			t.Errorf("one more waiting call: %v", err)
		}
		if err := ask(ctx, "a", MethodLock); err != nil {
			t.Errorf("a call that does not wait: %v", err)
		}
		one, stop := context.WithCancel(t.Context())
		stop()
		if err := ask(one, "b", MethodLockWait); !fault.Is(err, fault.Timeout) {
			t.Errorf("a waiting call to another server: %v", err)
		}
		giveUp()
		synctest.Wait()
		if err := ask(one, "a", MethodLockWait); !fault.Is(err, fault.Timeout) {
			t.Errorf("a waiting call after the others have ended: %v", err)
		}
		if len(c.waits.calls) != 0 {
			t.Errorf("calls that have ended are counted: %v", c.waits.calls)
		}
	})
}
