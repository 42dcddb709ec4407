package workflows

import (
	"errors"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/internal/fault"
)

// After the Keeper has resigned, an instance answers the calls that wait for its events. It does not hold the lock of
// the Keeper, because some of these calls need the lock.
func TestDrive_GoneInstanceAnswersWithoutTheLock(t *testing.T) {
	k := NewKeeper(Options{})
	var answer error
	i := &instance{Ref: Ref{App: "shop", ID: "order-7"}, gone: true, driving: true}
	i.inbox.add(&arrival{event: &protos.HistoryEvent{}, reply: func(err error) {
		if !k.mu.TryLock() {
			answer = errors.New("the Keeper is locked")
			return
		}
		defer k.mu.Unlock()
		answer = err
	}})
	k.drive(i)
	if !fault.Is(answer, fault.NotLeader) {
		t.Errorf("the answer is %v", answer)
	}
	k.Close()
}
