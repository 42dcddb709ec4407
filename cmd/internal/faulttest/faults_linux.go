package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// leaderAndOne are the leader of a random group and one of the other nodes.
func leaderAndOne(ctx context.Context, c *Cluster, rnd *rand.Rand) (leader, other *Node, rest []*Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if leader, err = c.Leader(ctx, 0); err != nil {
		return nil, nil, nil, err
	}
	for _, n := range c.Servers() {
		if n != leader {
			rest = append(rest, n)
		}
	}
	if len(rest) == 0 {
		return nil, nil, nil, errors.New("there is no other node")
	}
	return leader, rest[rnd.IntN(len(rest))], rest, nil
}

// onOne is a fault of one node.
func onOne(name string, leads bool, f func(n *Node) (func(context.Context) error, error)) Fault {
	who := " of a follower"
	if leads {
		who = " of the leader"
	}
	return Fault{Name: name + who, Inflict: func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
		leader, other, _, err := leaderAndOne(ctx, c, rnd)
		if err != nil {
			return nil, err
		}
		if leads {
			return f(leader)
		}
		return f(other)
	}}
}

// Kill is kill -9 of one node; it starts again when the fault is over.
func Kill(leader bool) Fault {
	return onOne("kill -9", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Start() }, n.Kill()
	})
}

// KillAll is kill -9 of all nodes at once.
func KillAll() Fault {
	return Fault{Name: "kill -9 of all", Inflict: func(_ context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		nodes := c.Running()
		var errs []error
		for _, n := range nodes { // all at once, then their ends
			errs = append(errs, n.current().cmd.Process.Kill())
		}
		for _, n := range nodes {
			errs = append(errs, n.Kill())
		}
		return func(context.Context) error {
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.Start())
			}
			return errors.Join(errs...)
		}, errors.Join(errs...)
	}}
}

// Restart is an orderly stop of one node, and a start when the fault is over.
func Restart(leader bool) Fault {
	return onOne("restart", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Start() }, n.Stop()
	})
}

// Pause stops one process where it stands.
func Pause(leader bool) Fault {
	return onOne("pause", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Resume() }, n.Pause()
	})
}

// wire is a fault of the wire around the leader.
func wire(name string, f func(c *Cluster, leader, other *Node, rest []*Node)) Fault {
	return Fault{Name: name, Inflict: func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
		leader, other, rest, err := leaderAndOne(ctx, c, rnd)
		if err != nil {
			return nil, err
		}
		f(c, leader, other, rest)
		return func(context.Context) error { c.Net.Heal(); return nil }, nil
	}}
}

// Isolate cuts the leader off.
func Isolate() Fault {
	return wire("leader cut off", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Cut(leader, n)
		}
	})
}

// Deafen lets the leader send but not receive.
func Deafen() Fault {
	return wire("leader deaf", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Net.Set(n.Addr, leader.Addr, Link{Cut: true})
		}
	})
}

// Mute lets the leader receive but not send.
func Mute() Fault {
	return wire("leader mute", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Net.Set(leader.Addr, n.Addr, Link{Cut: true})
		}
	})
}

// Bridge cuts the leader off from all but one node, which everybody still reaches.
func Bridge() Fault {
	return wire("bridge", func(c *Cluster, leader, other *Node, rest []*Node) {
		for _, n := range rest {
			if n != other {
				c.Cut(leader, n)
			}
		}
	})
}

// Halves splits the nodes in two, with the leader in the smaller part, which is one node of
// three and two of five.
func Halves() Fault {
	return wire("minority with the leader", func(c *Cluster, leader, other *Node, rest []*Node) {
		small := map[*Node]bool{leader: true, other: len(rest) > 2}
		for _, a := range append(rest, leader) {
			for _, b := range rest {
				if small[a] && !small[b] {
					c.Cut(a, b)
				}
			}
		}
	})
}

// Nobody cuts every node off from every other.
func Nobody() Fault {
	return wire("everybody alone", func(c *Cluster, leader, _ *Node, rest []*Node) {
		all := append(rest, leader)
		for i, a := range all {
			for _, b := range all[i+1:] {
				c.Cut(a, b)
			}
		}
	})
}

// Bad makes every link bad in the same way.
func Bad(l Link) Fault {
	name := fmt.Sprintf("wire with %s to %s delay and %.0f%% loss", l.Delay, l.Delay+l.Jitter, l.Loss*100)
	return wire(name, func(c *Cluster, leader, _ *Node, rest []*Node) {
		all := append(rest, leader)
		for _, a := range all {
			for _, b := range all {
				c.Net.Set(a.Addr, b.Addr, l)
			}
		}
	})
}

// Stall lets the disk of one node hang; a process that ends itself because of that is
// started again when the fault is over.
func Stall(leader bool) Fault {
	return onOne("stalled disk", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.Join(n.Disk.Resume(), n.Revive()) }, n.Disk.Stall()
	})
}

// Slow makes the disk of one node slow: it hangs for stall, again and again.
func Slow(leader bool, stall time.Duration) Fault {
	return onOne(fmt.Sprintf("disk that hangs for %s again and again", stall), leader, func(n *Node) (func(context.Context) error, error) {
		stop := n.Disk.Slow(stall, stall/4)
		return func(context.Context) error { return errors.Join(stop(), n.Revive()) }, nil
	})
}

// Power is a loss of power of one node: the process is gone, and so is all that was not
// forced to its disk.
func Power(leader bool) Fault {
	return onOne("loss of power", leader, func(n *Node) (func(context.Context) error, error) {
		return n.PowerOn, n.PowerOff()
	})
}

// PowerAll is a loss of power of all nodes at once.
func PowerAll() Fault {
	return Fault{Name: "loss of power of all", Inflict: func(_ context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		nodes := c.Servers()
		var errs []error
		for _, n := range nodes {
			errs = append(errs, n.Disk.Break())
		}
		for _, n := range nodes {
			errs = append(errs, n.Kill())
		}
		return func(ctx context.Context) error {
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.PowerOn(ctx))
			}
			return errors.Join(errs...)
		}, errors.Join(errs...)
	}}
}

// PowerOff kills the process and forgets what is not on its disk.
func (n *Node) PowerOff() error {
	n.Mark("power off")
	return errors.Join(n.Disk.Break(), n.Kill())
}

// PowerOn starts the node again on what its disk holds.
func (n *Node) PowerOn(context.Context) error {
	n.Mark("power on")
	if err := n.Disk.Replug(); err != nil {
		return err
	}
	return n.Start()
}

// Revive starts the process if it has ended by itself, or is about to: a process that
// waits for its disk ends once the disk goes on.
func (n *Node) Revive() error {
	life := n.current()
	if life.wait(500*time.Millisecond) != nil {
		return nil // it lives
	}
	return n.Start()
}
