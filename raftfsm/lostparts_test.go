package raftfsm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// harms are faults that can happen to one file of a data directory. older is an earlier copy of the directory.
var harms = map[string]func(file, older string) error{
	"emptied": func(file, _ string) error { return os.Truncate(file, 0) },
	"halved": func(file, _ string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, info.Size()/2)
	},
	"zeroed": func(file, _ string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.WriteFile(file, make([]byte, info.Size()), 0o600)
	},
	"removed": func(file, _ string) error { return os.Remove(file) },
	"a bit flipped": func(file, _ string) error { // in the middle of the part in use
		b, err := os.ReadFile(file)
		if err != nil || len(b) == 0 {
			return err
		}
		b[len(bytes.TrimRight(b, "\x00"))/2] ^= 0x10
		return os.WriteFile(file, b, 0o600)
	},
	"older": func(file, older string) error {
		b, err := os.ReadFile(older)
		if err != nil {
			return err
		}
		return os.WriteFile(file, b, 0o600)
	},
}

// files returns the regular files below dir, by relative path.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != "LOCK" {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	}))
	return names
}

// tryOpen opens a host whose directory may be damaged. The result fatal gets the first error passed to Options.Fatal.
func tryOpen(t *testing.T, o raftfsm.Options) (h *raftfsm.Host, fatal *atomic.Pointer[error], err error) {
	t.Helper()
	fatal = &atomic.Pointer[error]{}
	o.Fatal = func(err error) { fatal.CompareAndSwap(nil, &err) }
	o.Registerer = prometheus.NewRegistry()
	h, err = raftfsm.Open(within(t, 30*time.Second), o)
	if err == nil {
		t.Cleanup(func() { _ = h.Close() }) // an error of a damaged host is expected
	}
	return h, fatal, err
}

// refusedWell fails the test for an error without a code or a hint.
func refusedWell(t *testing.T, err error) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || !strings.Contains(fault.Text(err), "(") {
		t.Errorf("refused without a code or hint: %v", err)
	}
}

// mustRefuse lists, by log store and file, the harms for which the server must refuse to start. They lose data that
// cannot be restored. Other harms may be harmless: half of a raft-wal segment is space for future entries.
var mustRefuse = map[raftlog.Engine]map[string]string{
	raftlog.BoltDB: {
		"groups/0/stable.db":     "emptied halved zeroed removed older",
		"groups/0/log.db":        "emptied halved zeroed removed older",
		"groups/0/floor.json":    "emptied halved zeroed removed",
		"groups/0/manifest.json": "emptied halved zeroed removed older",
		"node.json":              "emptied halved zeroed removed",
	},
	raftlog.WAL: {
		"groups/0/stable.db":                                     "emptied halved zeroed removed older",
		"groups/0/wal/wal-meta.db":                               "emptied halved zeroed removed",
		"groups/0/wal/00000000000000000001-0000000000000000.wal": "emptied zeroed removed older",
		"groups/0/floor.json":                                    "emptied halved zeroed removed",
	},
}

// Each file in the directory of a single server is harmed in every way. The directory must be refused, or hold
// every acknowledged write.
func TestOpen_HarmedFileIsRefusedOrNothingIsLost(t *testing.T) {
	for _, engine := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			dir, older := t.TempDir(), filepath.Join(t.TempDir(), "older")
			o := options(t, dir)
			o.Engine = engine
			write := func(keys ...string) {
				t.Helper()
				o.Registerer = prometheus.NewRegistry()
				h := open(t, o)
				for _, k := range keys {
					set(t, h.Store("", "s"), k, k, state.Strong)
				}
				must(t, h.Groups()[0].Snapshot())
				set(t, h.Store("", "s"), keys[0], keys[0], state.Strong)
				closeHost(t, h)
			}
			write("k1", "k2")
			must(t, copyDir(older, dir))
			write("k3", "k4")
			outcomes := map[string]int{}
			for _, name := range files(t, dir) {
				for harm, do := range harms {
					t.Run(name+"/"+harm, func(t *testing.T) {
						o := o
						o.Dir = filepath.Join(t.TempDir(), "d")
						must(t, copyDir(o.Dir, dir))
						if err := do(filepath.Join(o.Dir, name), filepath.Join(older, name)); errors.Is(err,
							fs.ErrNotExist) {
							t.Skip("the earlier copy has no such file")
						} else {
							must(t, err)
						}
						h, fatal, err := tryOpen(t, o)
						if err != nil {
							refusedWell(t, err)
							outcomes[name+" "+harm]++
							return
						}
						for _, k := range []string{"k1", "k2", "k3", "k4"} {
							got, err := h.Store("", "s").Get(within(t, 10*time.Second), state.GetRequest{Key: k,
								ReadOptions: state.ReadOptions{Consistency: state.Strong}})
							if err == nil && string(got.Value) != k && fatal.Load() == nil {
								t.Errorf("%s is %q: an acknowledged write is lost", k, got.Value)
							}
						}
					})
				}
			}
			for name, harms := range mustRefuse[engine] {
				for harm := range strings.FieldsSeq(harms) {
					if outcomes[name+" "+harm] == 0 {
						t.Errorf("%s %s: not refused", name, harm)
					}
				}
			}
		})
	}
}

// startAnew opens a host whose directory may have been replaced.
func (c *cluster) startAnew(t *testing.T, o raftfsm.Options) (*raftfsm.Host, *atomic.Pointer[error], error) {
	t.Helper()
	h, fatal, err := tryOpen(t, o)
	if err == nil {
		c.mu.Lock()
		c.hosts[h.Identity().Server] = h
		c.mu.Unlock()
	}
	return h, fatal, err
}

// stop closes a host and removes it from the cluster.
func (c *cluster) stop(h *raftfsm.Host) {
	c.t.Helper()
	c.mu.Lock()
	delete(c.hosts, h.Identity().Server)
	c.mu.Unlock()
	closeHost(c.t, h)
}

// One of three servers starts with an older copy of its directory, or with an emptied log or vote file. It must
// not help another server to become leader, because that server may lack acknowledged writes.
func TestOpen_OlderCopyTakesNoPartInCluster(t *testing.T) {
	for _, engine := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		for _, bystander := range []string{"the leader remembers", "a restarted leader remembers",
			"another follower remembers"} {
			t.Run(fmt.Sprintf("%s/%s", engine, bystander), func(t *testing.T) {
				t.Parallel()
				options := map[string]raftfsm.Options{}
				c := startCluster(t, 3, func(o *raftfsm.Options) {
					o.Engine = engine
					o.Timing.WitnessEvery = 20 * time.Millisecond
					options[o.NodeID] = *o
				})
				lead := c.leader()
				followers := c.others(lead)
				victim := followers[0]
				set(t, lead.Store("", "s"), "before", "1", state.Strong)
				id, o := victim.Identity(), options[victim.Identity().Node]
				o.Bootstrap = false
				caughtUp(t, victim, lead)
				c.stop(victim)
				older := filepath.Join(t.TempDir(), "older")
				must(t, copyDir(older, o.Dir))

				again, fatal, err := c.startAnew(t, o) // the unchanged directory must be accepted
				must(t, err)
				lead = c.leader()
				set(t, lead.Store("", "s"), "after", "1", state.Strong)
				caughtUp(t, again, lead)
				eventually(t, func() error { // all other servers have recorded it
					for _, h := range c.others(again) {
						seen := h.Groups()[0].SeenOf(id.Server)
						if seen.Committed < again.Groups()[0].Status().AppliedIndex {
							return fmt.Errorf("%s has seen %+v", h.Identity().Node, seen)
						}
					}
					return nil
				})
				if e := fatal.Load(); e != nil {
					t.Fatalf("a healthy server was refused: %v", *e)
				}
				c.stop(again)
				must(t, os.RemoveAll(o.Dir))
				must(t, copyDir(o.Dir, older))
				switch bystander {
				case "a restarted leader remembers":
					lo := options[lead.Identity().Node]
					lo.Bootstrap = false
					for _, h := range c.others(again) {
						if h != lead {
							c.stop(h)
						}
					}
					c.stop(lead)
					_, _, err = c.startAnew(t, lo)
					must(t, err)
				case "another follower remembers":
					c.stop(lead)
				}
				old, fatal, err := c.startAnew(t, o)
				must(t, err) // the directory is consistent in itself
				eventually(t, func() error {
					if fatal.Load() == nil {
						return errors.New("the older copy was not detected")
					}
					return nil
				})
				if e := *fatal.Load(); !fault.Is(e, fault.Corrupt) || !strings.Contains(fault.Text(e), "older copy") {
					t.Errorf("the server ended with %v", e)
				}
				if old.Groups()[0].Leading() {
					t.Error("the server leads")
				}
				for _, h := range c.running() {
					if h.Groups()[0].Leading() {
						if got := get(t, h.Store("", "s"), "after", state.Strong); string(got.Value) != "1" {
							t.Errorf("after = %q: an acknowledged write is lost", got.Value)
						}
					}
				}
			})
		}
	}
}

// caughtUp waits until a follower has applied everything that the leader has.
func caughtUp(t *testing.T, h, lead *raftfsm.Host) {
	t.Helper()
	eventually(t, func() error {
		have, want := h.Groups()[0].Status(), lead.Groups()[0].Status()
		if have.AppliedIndex < want.AppliedIndex || have.CommitIndex < want.CommitIndex {
			return fmt.Errorf("applied %d of %d, committed %d of %d", have.AppliedIndex, want.AppliedIndex,
				have.CommitIndex, want.CommitIndex)
		}
		return nil
	})
}
