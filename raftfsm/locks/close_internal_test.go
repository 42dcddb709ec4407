package locks

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// leading is a group that this server leads.
type leading struct {
	records.Group // has the methods that a read does not call

	machine *kv.Machine
}

func (l *leading) Leading() bool        { return true }
func (l *leading) Term() uint64         { return 1 }
func (l *leading) Machine() *kv.Machine { return l.machine }

// A read has failed, and the Keeper is to read again after a pause.
func TestClose_StopsTheTimerOfTheNextRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := kv.Create(kv.Options{Dir: "db", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
		testutil.Must(t, err)
		testutil.Must(t, m.Close())
		k := NewKeeper(Options{Logger: slog.New(slog.DiscardHandler)})
		k.Attach(&leading{machine: m})
		k.Update()
		synctest.Wait()
		k.Close()
		if k.retry == nil {
			t.Fatal("there is no timer")
		}
		if k.retry.Stop() {
			t.Error("the timer runs after Close")
		}
	})
}
