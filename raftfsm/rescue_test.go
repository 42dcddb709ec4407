package raftfsm_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

func yes(raftfsm.Survey) (bool, error) { return true, nil }

// survivor makes a cluster of three with some keys. It returns the directory of one stopped server, and a
// session token.
func survivor(t *testing.T, engine raftlog.Engine) (dir, session string) {
	t.Helper()
	dirs := map[string]string{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions, o.Engine = 2, engine; dirs[o.NodeID] = o.Dir })
	lead := c.leader()
	for app := range 4 {
		w := set(t, lead.Store("", "s"), fmt.Sprintf("app%d||k", app), "v", state.Strong)
		session = w.Session
	}
	stay := c.others(lead)[0]
	sameState(t, lead, stay)
	c.mu.Lock()
	c.hosts[stay.Identity().Server] = nil
	c.mu.Unlock()
	closeHost(t, stay)
	return dirs[stay.Identity().Node], session
}

// alone opens a rescued directory. No other server is reachable.
func alone(t *testing.T, dir string) *raftfsm.Host {
	t.Helper()
	o := options(t, dir)
	o.Bootstrap = false
	o.Timing = group.Timing{Heartbeat: 150 * time.Millisecond, Election: 150 * time.Millisecond,
		Lease: 100 * time.Millisecond}
	return open(t, o)
}

func TestRescue_ServerServesAloneInNewEpoch(t *testing.T) {
	t.Parallel()
	for _, engine := range []raftlog.Engine{raftlog.BoltDB, raftlog.WAL} {
		t.Run(string(engine), func(t *testing.T) {
			dir, session := survivor(t, engine)
			var shown raftfsm.Survey
			s, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler),
				Agree: func(s raftfsm.Survey) (bool, error) {
					shown = raftfsm.Survey{Identity: s.Identity, Groups: append([]group.Survey{}, s.Groups...)}
					return true, nil
				}})
			must(t, err)
			if len(shown.Groups) != 2 || len(shown.Groups[0].Voters()) != 3 || shown.Alone() ||
				shown.Groups[0].LastIndex == 0 {
				t.Errorf("shown before: %+v", shown)
			}
			if !s.Alone() || s.Identity.Epoch == 0 {
				t.Errorf("afterwards: %+v", s)
			}
			h := alone(t, dir)
			for app := range 4 {
				key := fmt.Sprintf("app%d||k", app)
				it := get(t, h.Store("", "s"), key, state.Strong)
				if string(it.Value) != "v" {
					t.Errorf("%s = %q", key, it.Value)
				}
				if w := set(t, h.Store("", "s"), key, "w", state.Strong); len(w.ETags[0]) < 13 { // 2^40 has 13 digits
					t.Errorf("ETag %s may have been used before", w.ETags[0])
				}
			}
			it, err := h.Store("", "s").Get(t.Context(), state.GetRequest{Key: "app0||k",
				ReadOptions: state.ReadOptions{Session: session}})
			must(t, err)
			if it.Level != state.Stale {
				t.Errorf("a session from before the rescue reads at %s", it.Level)
			}
		})
	}
}

func TestRescue_DeclinedChangesNothing(t *testing.T) {
	t.Parallel()
	dir, _ := survivor(t, raftlog.BoltDB)
	before, err := os.ReadFile(filepath.Join(dir, "node.json"))
	must(t, err)
	s, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Agree: func(raftfsm.Survey) (bool, error) {
			return false, nil
		}})
	must(t, err)
	after, err := os.ReadFile(filepath.Join(dir, "node.json"))
	must(t, err)
	if string(before) != string(after) || len(s.Groups[0].Voters()) != 3 {
		t.Errorf("%s\n%s\n%+v", before, after, s)
	}
	s, err = raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Agree: func(raftfsm.Survey) (bool, error) {
			return false, nil
		}})
	if err != nil || len(s.Groups[1].Voters()) != 3 {
		t.Errorf("a second survey: %+v, %v", s, err)
	}
}

func TestRescue_RefusesUnsuitableDirectories(t *testing.T) {
	t.Parallel()
	running := options(t, t.TempDir())
	open(t, running)
	unformed := options(t, t.TempDir())
	unformed.Bootstrap = false
	closeHost(t, open(t, unformed))
	for name, c := range map[string]struct {
		dir  string
		code fault.Code
	}{
		"a server that runs":     {running.Dir, fault.Unavailable},
		"an empty directory":     {t.TempDir(), fault.Invalid},
		"a server of no cluster": {unformed.Dir, fault.Invalid},
	} {
		_, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: c.dir, Logger: slog.New(slog.DiscardHandler), Agree: yes})
		if !fault.Is(err, c.code) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, want %s with a hint", name, err, c.code)
		}
	}
}

// At every step the directory is copied as a crash would leave it. The server must refuse to start until the
// rescue has been run again. Afterwards it must have all data.
func TestRescue_InterruptedCanBeRepeated(t *testing.T) {
	t.Parallel()
	dir, _ := survivor(t, raftlog.BoltDB)
	copies := map[string]string{}
	step := func(name string) {
		if n := len(name); n > 6 && name[:6] == "rescue" {
			for copies[name] != "" {
				name += "+"
			}
			copies[name] = filepath.Join(t.TempDir(), "copy")
			must(t, copyDir(copies[name], dir))
		}
	}
	_, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler), Agree: yes,
		Step: step})
	must(t, err)
	if len(copies) != 6 {
		t.Fatalf("steps: %v", copies)
	}
	for name, dir := range copies {
		o := options(t, dir)
		o.Bootstrap = false
		if h, err := raftfsm.Open(t.Context(), o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: a server with an incomplete rescue starts: %v, %v", name, h, err)
			continue
		}
		_, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: slog.New(slog.DiscardHandler), Agree: yes})
		must(t, err)
		h := alone(t, dir)
		for app := range 4 {
			if it := get(t, h.Store("", "s"), fmt.Sprintf("app%d||k", app), state.Strong); string(it.Value) != "v" {
				t.Errorf("%s: app%d = %q", name, app, it.Value)
			}
		}
	}
}

// copyDir copies a tree. It repeats the copy if files were added or removed in the meantime.
func copyDir(to, from string) error {
	for {
		before, err := names(from)
		if err == nil {
			err = errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
		}
		after, err2 := names(from)
		if gone := errors.Is(err, fs.ErrNotExist); err2 == nil && !gone && (err != nil || slices.Equal(before, after)) {
			return err
		}
	}
}

// names returns the paths of all files and directories of a tree.
func names(dir string) (out []string, err error) {
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		out = append(out, path)
		return err
	})
	return out, err
}
