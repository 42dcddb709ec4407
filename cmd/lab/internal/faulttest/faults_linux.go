package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// leaderAndOne returns the leader of group 0, a random other server, and all servers except the leader. It considers
// only running servers, and waits up to a minute for a leader.
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

// onOne returns a fault that affects one node: the leader of group 0 if leads is true, and otherwise a random follower.
// The function f injects the fault into the node, and returns the function that ends the fault.
func onOne(name string, leads bool, f func(n *Node) (func(context.Context) error, error)) Fault {
	who := " of a follower"
	if leads {
		who = " of the leader"
	}
	return Fault{Name: name + who, Inflict: func(ctx context.Context, c *Cluster,
		rnd *rand.Rand) (func(context.Context) error, error) {
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

// Kill returns a fault that kills one node with SIGKILL. The node is the leader if leader is true, and a random
// follower otherwise. When the fault ends, the node is started again.
func Kill(leader bool) Fault {
	return onOne("kill -9", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Start() }, n.Kill()
	})
}

// KillAll returns a fault that kills all nodes with SIGKILL at the same time. When the fault ends, the nodes are
// started again.
func KillAll() Fault {
	return Fault{Name: "kill -9 of all", Inflict: func(_ context.Context, c *Cluster,
		_ *rand.Rand) (func(context.Context) error, error) {
		nodes := c.Running()
		for _, n := range nodes { // kill all first, then wait
			n.node.Signal(syscall.SIGKILL)
		}
		var errs []error
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

// Restart returns a fault that stops one node gracefully. The node is the leader if leader is true, and a random
// follower otherwise. When the fault ends, the node is started again.
func Restart(leader bool) Fault {
	return onOne("restart", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Start() }, n.Stop()
	})
}

// Pause returns a fault that suspends the process of one node with SIGSTOP. The node is the leader if leader is true,
// and a random follower otherwise. When the fault ends, the process continues.
func Pause(leader bool) Fault {
	return onOne("pause", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return n.Resume() }, n.Pause()
	})
}

// wire returns a network fault with the given name. The function f cuts or delays links. When the fault ends, all links
// work normally again.
func wire(name string, f func(c *Cluster, leader, other *Node, rest []*Node)) Fault {
	return Fault{Name: name, Inflict: func(ctx context.Context, c *Cluster,
		rnd *rand.Rand) (func(context.Context) error, error) {
		leader, other, rest, err := leaderAndOne(ctx, c, rnd)
		if err != nil {
			return nil, err
		}
		f(c, leader, other, rest)
		return func(context.Context) error { c.Net.Heal(); return nil }, nil
	}}
}

// Isolate returns a fault that cuts the links between the leader and all other servers. When the fault ends, the links
// work again.
func Isolate() Fault {
	return wire("leader cut off", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Cut(leader, n)
		}
	})
}

// Deafen returns a fault during which the leader receives nothing from the other servers, while they receive
// everything from the leader.
func Deafen() Fault {
	return wire("leader deaf", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Net.Set(n.Addr, leader.Addr, Link{Cut: true})
		}
	})
}

// Mute returns a fault during which the other servers receive nothing from the leader, while the leader receives
// everything from them.
func Mute() Fault {
	return wire("leader mute", func(c *Cluster, leader, _ *Node, rest []*Node) {
		for _, n := range rest {
			c.Net.Set(leader.Addr, n.Addr, Link{Cut: true})
		}
	})
}

// Bridge returns a fault that cuts the links between the leader and all other servers except one, the bridge. The
// bridge can still reach all servers.
func Bridge() Fault {
	return wire("bridge", func(c *Cluster, leader, other *Node, rest []*Node) {
		for _, n := range rest {
			if n != other {
				c.Cut(leader, n)
			}
		}
	})
}

// Halves returns a fault that partitions the network. The leader is in the minority: alone in a cluster of three
// nodes, and with one other node in a cluster of five.
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

// IsolateAll returns a fault that cuts all links between servers.
func IsolateAll() Fault {
	return wire("everybody alone", func(c *Cluster, leader, _ *Node, rest []*Node) {
		all := append(rest, leader)
		for i, a := range all {
			for _, b := range all[i+1:] {
				c.Cut(a, b)
			}
		}
	})
}

// Bad returns a fault that gives every link between servers the delay and the loss in l.
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

// Stall returns a fault that makes the disk of one node hang. The node is the leader if leader is true, and a random
// follower otherwise. When the fault ends, the process is restarted if it has exited.
func Stall(leader bool) Fault {
	return onOne("stalled disk", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.Join(n.Disk.Resume(), n.Revive()) }, n.Disk.Stall()
	})
}

// Slow returns a fault that makes the disk of one node hang repeatedly, each time for the given duration. The node is
// the leader if leader is true, and a random follower otherwise. When the fault ends, the process is restarted if it
// has exited.
func Slow(leader bool, stall time.Duration) Fault {
	return onOne(fmt.Sprintf("disk that hangs for %s again and again", stall), leader,
		func(n *Node) (func(context.Context) error, error) {
			stop := n.Disk.Slow(stall, stall/4)
			return func(context.Context) error { return errors.Join(stop(), n.Revive()) }, nil
		})
}

// Power returns a fault that simulates a power loss of one node. It kills the process and discards data that was not
// flushed to the disk. The node is the leader if leader is true, and a random follower otherwise. When the fault ends,
// the node is started again with the flushed data.
func Power(leader bool) Fault {
	return onOne("loss of power", leader, func(n *Node) (func(context.Context) error, error) {
		return n.PowerOn, n.PowerOff()
	})
}

// PowerAll returns a fault that simulates a power loss of all servers at the same time. When the fault ends, the
// servers are started again with the data that was flushed to their disks.
func PowerAll() Fault {
	return Fault{Name: "loss of power of all",
		Inflict: func(_ context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
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

// PowerOff kills the process and discards the data that was not flushed to the disk.
func (n *Node) PowerOff() error {
	n.Mark("power off")
	return errors.Join(n.Disk.Break(), n.Kill())
}

// PowerOn starts the node again after PowerOff, with the data that was flushed to the disk.
func (n *Node) PowerOn(context.Context) error {
	n.Mark("power on")
	if err := n.Disk.Replug(); err != nil {
		return err
	}
	return n.Start()
}

// Revive restarts the process if it has ended or ends within 500 ms. It waits because a process that hangs on its disk
// may exit only when the disk works again.
func (n *Node) Revive() error {
	select {
	case <-n.Ended():
		return n.Start()
	case <-time.After(500 * time.Millisecond):
		return nil // it runs
	}
}
