// Package tuned opens nodes for fault tests, with settings that the real program does not have. With shorter times and
// smaller sizes, a test takes seconds instead of minutes. If the environment variable Env is set, the program lab
// behaves like the quorate command, but opens nodes with this package.
//
// Through control files, a test can shift the wall clock of a node, or kill the node at a chosen disk operation of its
// store. The package owns these files and the settings. It changes nothing else of the product, so results of the tests
// apply to the real program. One goroutine reads the control files until the process ends.
package tuned

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Environment variables.
const (
	Env     = "QUORATE_FAULT_TUNING"  // a Tuning as JSON; if set, the program is the quorate command
	Control = "QUORATE_FAULT_CONTROL" // directory of the control files; it may be missing
)

// Control files.
const (
	ClockFile = "clock" // shift of the wall clock in seconds
	// CrashFile is the name of the control file that requests a crash. The file contains a number n. Once the process
	// has read the file, it counts its disk operations, and kills itself at operation n. If n is 0, no crash is
	// requested.
	CrashFile = "crash"
)

// Tuning has the settings that differ from the real program. The zero value changes nothing.
type Tuning struct {
	Bounds group.Bounds
	Timing group.Timing
	Limits placement.Limits
}

// Quick returns a Tuning with short waiting times for the placement policy, and with the default Raft timeouts.
func Quick() Tuning {
	return Tuning{Limits: placement.Limits{Stable: 200 * time.Millisecond, Settle: 2 * time.Second}}
}

// Text returns the tuning as JSON, the value of the environment variable Env.
func (t Tuning) Text() string {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // only numbers
	}
	return string(text)
}

// Opener opens nodes with the settings of a Tuning. It also carries out what the control files request. It is safe for
// concurrent use.
type Opener struct {
	tuning   Tuning
	controls *controls
}

// New returns an Opener with the given settings, in the format of the environment variable Env. The environment
// variable Control contains the directory of the control files. If it is set, New starts a goroutine that polls these
// files until the process ends.
func New(text string) (*Opener, error) {
	o := &Opener{controls: new(controls)}
	if err := json.Unmarshal([]byte(text), &o.tuning); err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	if dir := os.Getenv(Control); dir != "" {
		o.controls.read(dir)
		go o.controls.follow(dir)
	}
	return o, nil
}

// Open opens a node as the quorate command does, with the tuning.
func (o *Opener) Open(ctx context.Context, settings node.Config, log *slog.Logger) (*node.Node, error) {
	c := &settings.Cluster
	c.Bounds, c.Timing, c.Limits = o.tuning.Bounds, o.tuning.Timing, o.tuning.Limits
	settings.Data.MinFree, settings.Data.AnyMinFree = 1, true // tests fill disks
	return node.Open(ctx, settings, node.Deps{
		Logger: log, Env: os.LookupEnv, Exit: os.Exit, Step: o.controls.step,
		Fatal: func(err error) {
			log.Error("this node cannot continue and exits", "error", err)
			os.Exit(1)
		},
	})
}

// controls applies the control files, through which tests control this process. It is safe for concurrent use.
type controls struct {
	crash atomic.Int64 // disk operations left until the kill; 0 = none requested
	last  string       // last content of the crash file; used only by the reader
}

// follow polls the control files.
func (c *controls) follow(dir string) {
	for range time.Tick(20 * time.Millisecond) {
		c.read(dir)
	}
}

func (c *controls) read(dir string) {
	turnClock(time.Duration(number(dir, ClockFile)) * time.Second)
	text, _ := os.ReadFile(filepath.Join(dir, CrashFile)) // it may not exist
	if now := string(text); now != c.last {
		c.last = now
		c.crash.Store(number(dir, CrashFile))
	}
}

// number returns the number in a control file, or 0 if there is none.
func number(dir, name string) int64 {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// step counts a disk operation, and kills the process with SIGKILL at the operation that the crash file requests.
func (c *controls) step(string) {
	for {
		left := c.crash.Load()
		if left <= 0 {
			return
		}
		if !c.crash.CompareAndSwap(left, left-1) {
			continue
		}
		if left == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the kernel ends the process
		}
		return
	}
}
