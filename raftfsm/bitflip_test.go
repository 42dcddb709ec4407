package raftfsm_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// flipCount is the name of an environment variable. Its value is how many bits are flipped in each file, and how many
// times the file is cut off.
const flipCount = "QUORATE_FLIPS"

// flips is the default of QUORATE_FLIPS.
const flips = 6

// flipped is a change of one file: one bit, or its length.
type flipped struct {
	bit int64 // number of the bit; -1 = none
	cut int64 // new length; -1 = unchanged
}

func (f flipped) String() string {
	if f.bit >= 0 {
		return fmt.Sprintf("bit %d of byte %d", f.bit%8, f.bit/8)
	}
	return fmt.Sprintf("cut off at %d", f.cut)
}

func (f flipped) do(path string) error {
	if f.bit < 0 {
		return os.Truncate(path, f.cut)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[f.bit/8] ^= 1 << (f.bit % 8)
	return os.WriteFile(path, b, 0o600)
}

// randomFlips returns n flips and n cuts of a file. All are before the zeros at its end, because logs are
// preallocated.
func randomFlips(t *testing.T, rnd *rand.Rand, path string, n int) (out []flipped) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	used := int64(max(len(bytes.TrimRight(b, "\x00")), 1))
	if len(b) == 0 {
		return nil
	}
	for range n {
		out = append(out, flipped{bit: rnd.Int64N(used * 8), cut: -1}, flipped{bit: -1, cut: rnd.Int64N(used)})
	}
	return out
}

func flipsWanted(t *testing.T) int {
	s := os.Getenv(flipCount)
	if s == "" {
		return flips
	}
	n, err := strconv.Atoi(s)
	must(t, err)
	return n
}

// flipKeys returns the key with the number n, and its value.
func flipKeys(n int) (key, value string) {
	return fmt.Sprintf("app||k%03d", n), fmt.Sprintf("value %d of %s", n, strings.Repeat("x", 300))
}

const flipKeyCount = 120

// flipDir makes the data directory of a lone server: with tables, a log that is partly in the database, and a
// snapshot.
func flipDir(t *testing.T, e raftlog.Engine) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	o := options(t, dir)
	o.Engine, o.Timing.FloorEvery = e, 10*time.Millisecond
	for round := range 2 {
		o.Registerer = prometheus.NewRegistry()
		h := open(t, o)
		for n := round; n < flipKeyCount; n += 2 {
			key, value := flipKeys(n)
			set(t, h.Store("", "s"), key, value, state.Strong)
		}
		if round == 0 {
			must(t, h.Groups()[0].Snapshot())
		}
		closeHost(t, h)
	}
	return dir
}

// Single bits of a lone server's files are flipped, and files are cut off. The server must refuse to start with an
// error that names the file, or serve right values only.
func TestDamage_LoneServerServesNoWrongValue(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server for each change of a file")
	}
	forEngines(t, func(t *testing.T, e raftlog.Engine) {
		rnd, dir := crashRandom(t), flipDir(t, e)
		outcomes := map[string]int{}
		for _, name := range files(t, dir) {
			for _, f := range randomFlips(t, rnd, filepath.Join(dir, name), flipsWanted(t)) {
				o := options(t, filepath.Join(t.TempDir(), "d"))
				must(t, copyDir(o.Dir, dir))
				must(t, f.do(filepath.Join(o.Dir, name)))
				outcome, err := damaged(t, o)
				switch {
				case outcome == "wrong":
					t.Errorf("%s, %s: %v", name, f, err)
				case err != nil && (!refusal(err) || !namesFile(err, name)):
					t.Errorf("%s, %s: %s: the error is not about this file: %v", name, f, outcome, err)
				case outcome == "refused":
					refusedWell(t, err)
				}
				outcomes[filepath.Base(name)+" "+outcome]++
				must(t, os.RemoveAll(o.Dir))
			}
		}
		t.Log(outcomes)
		for _, file := range []string{"node.json", "floor.json", "manifest.json", "stable.db"} {
			if outcomes[file+" refused"] == 0 {
				t.Errorf("no damage of %s was refused", file)
			}
		}
	})
}

// namesFile reports whether an error names a file. Pebble names its tables without the extension.
func namesFile(err error, file string) bool {
	text := fault.Text(err)
	// If the end of the log is missing, the damage may be in the segment or in the list of segments. So the error
	// names only the directory.
	logEnds := strings.Contains(text, "is an older copy") && strings.Contains(text, filepath.Dir(file))
	return logEnds || strings.Contains(text, strings.TrimSuffix(filepath.Base(file), ".sst"))
}

// refusal reports whether an error reports damage. A damaged format number looks like a newer version,
// for which the code is fault.Invalid.
func refusal(err error) bool { return fault.Is(err, fault.Corrupt) || fault.Is(err, fault.Invalid) }

// damaged opens a server and reads every key. It returns what happened, and the error of the server.
func damaged(t *testing.T, o raftfsm.Options) (outcome string, err error) {
	t.Helper()
	h, fatal, err := tryOpen(t, o)
	if err != nil {
		return "refused", err
	}
	defer func() { _ = h.Close() }() // may fail, because the directory is damaged
	for n := range flipKeyCount {
		key, value := flipKeys(n)
		got, err := h.Store("", "s").Get(within(t, 20*time.Second), state.GetRequest{Key: key,
			ReadOptions: state.ReadOptions{Consistency: state.Strong}})
		switch {
		case err != nil && fatal.Load() != nil:
			return "ended at a read", *fatal.Load()
		case err != nil:
			return "failed a read", err
		case string(got.Value) != value:
			return "wrong", fmt.Errorf("%s is %.40q", key, got.Value)
		}
	}
	if e := fatal.Load(); e != nil {
		return "ended", *e
	}
	return "right values", nil
}
