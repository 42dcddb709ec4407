package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/tuned"
)

// Wipe returns a fault that kills a server and deletes its data. The server is the leader if leader is true, and a
// random follower otherwise. When the fault ends, the server is started with its old name and an empty disk.
func Wipe(leader bool) Fault {
	return onOne("disk wiped", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.Join(n.Anew(), n.Start()) }, n.Kill()
	})
}

// Clone returns a fault that starts a second node on a copy of a follower's data directory, as if the copy were on
// another machine. The follower is stopped while its directory is copied.
func Clone() Fault {
	return fault("a copy of a data directory runs beside its original",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			_, other, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			if err := other.Kill(); err != nil {
				return nil, err
			}
			shadow, err := c.Shadow(other)
			if err != nil {
				return nil, err
			}
			cp := exec.CommandContext(ctx, "cp", "-a", other.DataDir(), shadow.DataDir())
			if out, err := cp.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("cp: %w: %s", err, out)
			}
			if err := os.Remove(filepath.Join(shadow.DataDir(), "admin.sock")); err != nil &&
				!errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			if err := other.Start(); err != nil {
				return nil, err
			}
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if err := c.Ready(limit); err != nil {
				return nil, fmt.Errorf("before the copy was started: %w", err)
			}
			return c.intruder(ctx, shadow, other)
		})
}

// Twin returns a fault that starts a new server with the node id of a running follower.
func Twin() Fault {
	return fault("a new server has the id of another",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			_, other, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			shadow, err := c.Shadow(other)
			if err != nil {
				return nil, err
			}
			return c.intruder(ctx, shadow, other)
		})
}

// intruder starts a node (shadow) that has the same node id as another one (original). The cluster must refuse one of
// the two. The returned function kills the shadow, and restarts the original if the original has exited. The returned
// function fails with a Broken error if both nodes have served requests at the same time.
func (c *Cluster) intruder(ctx context.Context, shadow, original *Node) (func(context.Context) error, error) {
	if err := shadow.Start(); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		both, why := false, ""
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = Until(limit, func() error { // time to detect it
			if shadow.Running() && shadow.Healthy(limit) == nil && original.Healthy(limit) == nil {
				a, b := shadow.do(limit, Get("ready-"+original.Name, Strong)),
					original.do(limit, Get("ready-"+original.Name, Strong))
				both = a.Outcome == Done && b.Outcome == Done
				why = fmt.Sprintf("%s and its double both serve", original.Name)
			}
			if both {
				return nil
			}
			return errors.New("not yet")
		})
		cancel()
		running := shadow.Running()
		c.tell("the double of %s runs: %t; both serve: %t", original.Name, running, both)
		if err := shadow.Kill(); err != nil {
			return err
		}
		if !original.Running() { // one of the two had to end
			c.tell("%s was the one that went", original.Name)
			if err := original.Start(); err != nil {
				return err
			}
		}
		if both {
			return &Broken{"a server is there once", why}
		}
		return nil
	}, nil
}

// Clock returns a fault that shifts the wall clock of the leader by the given number of seconds, without a restart. If
// all is true, it shifts the clocks of all nodes. If strobe is true, it shifts the clocks back and forth repeatedly.
func Clock(all bool, seconds int64, strobe bool) Fault {
	name := fmt.Sprintf("clock of the leader turned by %+d s", seconds)
	if all {
		name = fmt.Sprintf("clocks of all turned by %+d s", seconds)
	}
	if strobe {
		name += ", back and forth"
	}
	return fault(name, func(ctx context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		limit, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		leader, err := c.Leader(limit, 0)
		if err != nil {
			return nil, err
		}
		nodes := []*Node{leader}
		if all {
			nodes = c.Running()
		}
		set := func(v int64) error {
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.Order(tuned.ClockFile, v))
			}
			return errors.Join(errs...)
		}
		if err := set(seconds); err != nil { // before the strobe, which writes the same files
			return func(context.Context) error { return set(0) }, err
		}
		stop := nothing
		if strobe {
			stop = during(ctx, func(ctx context.Context) {
				_ = set(seconds) // the last write is checked
				pause(ctx, 100*time.Millisecond)
				_ = set(-seconds)
				pause(ctx, 100*time.Millisecond)
			})
		}
		return func(ctx context.Context) error { return errors.Join(stop(ctx), set(0)) }, nil
	})
}

// Late returns a fault that restarts a server with a wall clock that is behind by the given number of seconds. The
// server is the leader if leader is true, and a random follower otherwise. When the fault ends, the clock is
// corrected.
func Late(leader bool, seconds int64) Fault {
	return onOne(fmt.Sprintf("restart with a clock that is %d s behind,", seconds), leader,
		func(n *Node) (func(context.Context) error, error) {
			return func(context.Context) error { return n.Order(tuned.ClockFile, 0) },
				errors.Join(n.Stop(), n.Order(tuned.ClockFile, -seconds), n.Start())
		})
}

// Crash returns a fault that kills the process of one node during one of its next 200 disk operations. The node is
// the leader if leader is true, and a random follower otherwise. When the fault ends, the process is started again.
func Crash(leader bool) Fault {
	return Fault{Name: onOne("kill -9 in the middle of disk work", leader, nil).Name,
		Inflict: func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			leads, other, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			n := other
			if leader {
				n = leads
			}
			step := int64(1 + rnd.IntN(200))
			return func(ctx context.Context) error {
				if err := n.Order(tuned.CrashFile, 0); err != nil {
					return err
				}
				if n.Running() {
					c.tell("%s did not come to step %d of its disk work", n.Name, step)
				}
				return n.Revive()
			}, n.Order(tuned.CrashFile, step)
		}}
}
