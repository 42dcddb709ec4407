package group

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func TestFloor_NeverExceedsStoresAfterCrash(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := alone(t, filepath.Join(t.TempDir(), "g"))
		o.Engine, o.Bounds.TrailingEntries = e, 2
		var images func() map[string]string
		o.Step, images = imaging(t, o.Dir)
		g := openGroup(t, o)
		for i := range 6 {
			put(t, g, key(i), "v")
		}
		must(t, g.Snapshot())
		put(t, g, "after", "v")
		must(t, g.disk.stable.SetUint64([]byte(raftlog.KeyCurrentTerm), g.Term()+1))
		castVote(t, g.disk.stable, g.Term()+1, "b")
		must(t, g.disk.floors.Write())
		// Delete the end of the log without raft, as a follower does for a new leader.
		last := g.disk.logs.Last()
		must(t, g.raft.Shutdown().Error())
		must(t, g.disk.logs.DeleteRange(last, last))
		must(t, g.disk.logs.StoreLog(&raft.Log{Index: last, Term: g.Term() + 1, Type: raft.LogNoop}))
		closeGroup(t, g)
		n := 0
		for name, dir := range images() {
			man, err := readManifest(dir)
			if err != nil || man == nil {
				continue
			}
			if n++; testing.Short() && n > 25 {
				break // 25 images in random order are enough for a short test
			}
			again := alone(t, dir).withDefaults()
			again.Engine = e
			d, err := openDisk(again, again.Metrics.group(0), newClock(again.Now))
			// The machine has applied the entry that the test deleted from the log.
			if err != nil && strings.Contains(err.Error(), "the database holds entries") {
				err = nil
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			_ = d.close()
		}
		if n < 20 {
			t.Errorf("only %d crashes were tried", n)
		}
	})
}

// The term of the newest entry is compared as well: an older copy of the terms is refused even without a floor.
func TestOpen_RefusesTermBelowThatOfLog(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := alone(t, t.TempDir())
		o.Engine = e
		g := openGroup(t, o)
		put(t, g, "k", "v")
		closeGroup(t, g)
		s, err := raftlog.OSVolume{}.Stable(filepath.Join(o.Dir, raftlog.StableName))
		must(t, err)
		must(t, s.SetUint64([]byte(raftlog.KeyCurrentTerm), 1))
		must(t, s.Close())
		must(t, os.Remove(filepath.Join(o.Dir, raftlog.FloorName)))
		again := alone(t, o.Dir)
		again.Engine = e
		_, err = Open(limited(t), again)
		wantCode(t, err, fault.Corrupt)
	})
}
