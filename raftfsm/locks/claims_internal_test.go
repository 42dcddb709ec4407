package locks

import (
	"log/slog"
	"testing"

	"github.com/quorate/quorate/raftfsm/kv"
)

// A read that began before a lock was acquired finds no owner. Such a read does not prove that the lock has ended, so
// the claim stays.
func TestKeeper_StaleReadKeepsClaim(t *testing.T) {
	k := NewKeeper(Options{Logger: slog.New(slog.DiscardHandler)})
	k.machine = new(kv.Machine)
	if !k.claim("a", 11) {
		t.Fatal("the lock cannot be claimed")
	}
	k.set("a", Lock{}, false, 10)
	if got := k.claimed["a"]; got.token != 11 || got.calls != 1 {
		t.Errorf("after a read of revision 10, the claim is %+v", got)
	}
	k.set("a", Lock{}, false, 11)
	if got, found := k.claimed["a"]; found {
		t.Errorf("the lock has ended, and the claim %+v is kept", got)
	}
}
