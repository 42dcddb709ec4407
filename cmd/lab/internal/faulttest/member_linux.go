package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// patience is how long a healthy cluster may take for a change.
const patience = 90 * time.Second

// fault returns a fault with the given name. The function f injects the fault and returns the function that ends it.
func fault(name string, f func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error,
	error)) Fault {
	return Fault{Name: name, Inflict: func(ctx context.Context, c *Cluster,
		rnd *rand.Rand) (func(context.Context) error, error) {
		return f(ctx, c, rnd)
	}}
}

// during calls f repeatedly in a goroutine. The function stop ends the repetition and waits until f has returned.
func during(ctx context.Context, f func(ctx context.Context)) (stop func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			f(ctx)
		}
	})
	return func(context.Context) error {
		cancel()
		wg.Wait()
		return nil
	}
}

// nothing is the function that ends a fault if there is nothing to undo.
func nothing(context.Context) error { return nil }

// newServer adds a server and waits until it serves.
func (c *Cluster) newServer(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := c.Add(0)
	if err != nil {
		return nil, err
	}
	n.joinAll()
	if err := n.Start(); err != nil {
		return nil, err
	}
	c.tell("%s is added", n.Name)
	return n, c.Ready(ctx)
}

// expel removes a server from the cluster permanently, through another server, and then ends its process. If the
// removed server still answers reads 90 seconds after the call (the constant patience), expel returns a Broken error.
func (c *Cluster) expel(ctx context.Context, victim *Node) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	others := slices.DeleteFunc(c.Servers(), func(n *Node) bool { return n == victim })
	c.tell("%s is removed", victim.Name)
	if err := others[0].Remove(ctx, victim); err != nil {
		return fmt.Errorf("removing %s: %w", victim.Name, err)
	}
	if victim.Running() {
		err := Until(ctx, func() error {
			a := victim.do(ctx, Get("ready-"+victim.Name, Eventual))
			if a.Outcome == Done && !a.Stale() {
				return errors.New(victim.Name + " was removed and still answers reads")
			}
			return nil
		})
		if err != nil {
			return &Broken{"a removed server serves nothing", err.Error()}
		}
	}
	if err := c.Retire(victim); err != nil {
		return err
	}
	c.renewJoins()
	return nil
}

// renewJoins makes every node connect to the current servers at its next start, as an operator does after replacing
// servers. Otherwise a node might know only the addresses of removed servers.
func (c *Cluster) renewJoins() {
	for _, n := range c.Nodes() {
		n.joinAll()
	}
}

// Exchange returns a fault that adds a server. When the fault ends, a server is removed: the leader, or a random
// follower if leader is false. The removed follower may be the added server.
func Exchange(leader bool) Fault {
	who := "a follower"
	if leader {
		who = "the leader"
	}
	return fault("a server is added and "+who+" removed",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			fresh, err := c.newServer(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				leads, other, _, err := leaderAndOne(ctx, c, rnd)
				if err != nil {
					return err
				}
				if leader {
					return c.expel(ctx, leads)
				}
				if other == fresh { // then the new one is removed immediately; otherwise a voter is removed
					c.tell("the new one goes again")
				}
				return c.expel(ctx, other)
			}, nil
		})
}

// Leave returns a fault that adds a server, and then makes the leader leave the cluster permanently. Nothing changes
// when the fault ends.
func Leave() Fault {
	return fault("the leader leaves permanently",
		func(ctx context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			if _, err := c.newServer(ctx); err != nil {
				return nil, err
			}
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			leader, err := c.Leader(limit, 0)
			if err != nil {
				return nil, err
			}
			c.tell("%s leaves", leader.Name)
			if err := leader.Leave(limit); err != nil {
				return nil, fmt.Errorf("%s leaves: %w", leader.Name, err)
			}
			err = c.Retire(leader)
			c.renewJoins()
			return nothing, err
		})
}

// Replace returns a fault that kills a server permanently. When the fault ends, a new server joins, and the dead
// server is removed.
func Replace() Fault {
	return fault("a dead server is replaced", func(ctx context.Context, c *Cluster,
		rnd *rand.Rand) (func(context.Context) error, error) {
		_, other, _, err := leaderAndOne(ctx, c, rnd)
		if err != nil {
			return nil, err
		}
		c.tell("%s dies permanently", other.Name)
		if err := c.Retire(other); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			if _, err := c.newServer(ctx); err != nil {
				return err
			}
			return c.expel(ctx, other)
		}, nil
	})
}

// Rolling returns a fault that restarts all servers one after another. The restarts begin when the fault ends. After
// each restart, the fault waits until all nodes serve and each group has all its voters again.
func Rolling() Fault {
	return fault("rolling restart", func(ctx context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error,
		error) {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 3*patience)
			defer cancel()
			for _, n := range c.Servers() {
				if err := errors.Join(n.Stop(), n.Start()); err != nil {
					return err
				}
				if err := errors.Join(c.Ready(ctx), c.Settled(ctx, voting)); err != nil {
					return err
				}
			}
			return nil
		}, nil
	})
}

// voting is the number of voters in the clusters of these faults.
const voting = 3

// RestartAll returns a fault that stops all nodes gracefully at the same time. When the fault ends, the nodes are
// started again.
func RestartAll() Fault {
	return fault("restart of all at once", func(ctx context.Context, c *Cluster,
		_ *rand.Rand) (func(context.Context) error, error) {
		nodes := c.Running()
		errs := make([]error, len(nodes))
		var wg sync.WaitGroup
		for i, n := range nodes {
			wg.Go(func() { errs[i] = n.Stop() })
		}
		wg.Wait()
		return func(context.Context) error {
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.Start())
			}
			return errors.Join(errs...)
		}, errors.Join(errs...)
	})
}

// Storm returns a fault during which the leadership of every group is transferred repeatedly.
func Storm() Fault {
	return fault("leadership is handed over again and again",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			every := time.Duration(100+rnd.IntN(400)) * time.Millisecond
			done, refused := 0, 0
			stop := during(ctx, func(ctx context.Context) {
				for _, n := range c.Servers() {
					s, err := n.Status(ctx)
					if err != nil {
						continue
					}
					for _, g := range s.Groups {
						if g.State != "leader" {
							continue
						}
						if n.Transfer(ctx, g.ID) == nil {
							done++
						} else {
							refused++
						}
					}
				}
				pause(ctx, every)
			})
			return func(ctx context.Context) error {
				err := stop(ctx)
				c.tell("handed over %d times, %d refused", done, refused)
				return err
			}, nil
		})
}

// away waits until a stopped or disconnected server can catch up only from a snapshot. This is so when the leader's
// snapshot index is above last+trailing, where last is the last log index of the server. If the cluster does not reach
// this state within 20 s, because there are too few writes, away logs this and returns nil. It returns an error only if
// ctx ends.
func (c *Cluster) away(ctx context.Context, server *Node, last uint64) error {
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := Until(limit, func() error {
		for _, n := range c.Servers() {
			if n == server {
				continue
			}
			s, err := n.Status(limit)
			if err != nil || s.Groups[0].State != "leader" || !s.Groups[0].Writes {
				continue
			}
			if s.Groups[0].SnapshotIndex <= last+trailing {
				return fmt.Errorf("the snapshot of %s is at %d, the node went away at %d", n.Name,
					s.Groups[0].SnapshotIndex, last)
			}
			return nil
		}
		return errors.New("there is no leader")
	})
	if err != nil {
		c.tell("too few writes for a snapshot to be sent: %v", err)
	}
	return ctx.Err()
}

// trailing is the number of log entries that a node keeps although its last snapshot includes them. The tested clusters
// must be configured with this number.
const trailing = 100

func (n *Node) lastIndex(ctx context.Context) (uint64, error) {
	s, err := n.Status(ctx)
	if err != nil || len(s.Groups) == 0 {
		return 0, errors.Join(err, errors.New("no group"))
	}
	return s.Groups[0].LastLogIndex, nil
}

// Install returns a fault that kills a follower. When the fault ends, these steps follow:
//
//  1. The fault waits until the follower can catch up only from a snapshot.
//  2. The follower is started, sometimes over a slowed network.
//  3. After a random time, the follower is killed, perhaps during the installation of the snapshot, and started again.
func Install() Fault {
	return fault("a snapshot is installed, broken off, installed again",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			_, other, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			last, err := other.lastIndex(ctx)
			if err != nil {
				return nil, err
			}
			if err := other.Kill(); err != nil {
				return nil, err
			}
			slow, cut := time.Duration(rnd.IntN(3))*20*time.Millisecond, time.Duration(rnd.IntN(2000))*time.Millisecond
			return func(ctx context.Context) error {
				if err := c.away(ctx, other, last); err != nil {
					return err
				}
				for _, n := range c.Nodes() {
					c.Net.Set(n.Addr, other.Addr, Link{Delay: slow})
				}
				defer c.Net.Heal()
				if err := other.Start(); err != nil {
					return err
				}
				pause(ctx, cut)
				if err := errors.Join(other.Kill(), other.Start()); err != nil {
					return err
				}
				limit, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				return c.Ready(limit)
			}, nil
		})
}

// Contradict returns a fault that isolates the leader, which may then append log entries that are never committed.
// Ending the fault waits until the isolated node can catch up only from a snapshot, and then heals the network. The
// node must then discard its uncommitted entries, because the snapshot contradicts them.
func Contradict() Fault {
	return fault("leader cut off, with a tail that contradicts a snapshot",
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			leader, _, rest, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			last, err := leader.lastIndex(ctx)
			if err != nil {
				return nil, err
			}
			for _, n := range append(rest, c.sidecars()...) {
				c.Cut(leader, n)
			}
			return func(ctx context.Context) error {
				defer c.Net.Heal()
				return c.away(ctx, leader, last)
			}, nil
		})
}

func (c *Cluster) sidecars() []*Node {
	return slices.DeleteFunc(c.Running(), func(n *Node) bool { return !n.Sidecar })
}

// OneWay returns a fault that cuts one direction of the link between two random servers.
func OneWay() Fault {
	return fault("one direction of one link cut",
		func(_ context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			nodes := c.Servers()
			order := rnd.Perm(len(nodes))
			c.Net.Set(nodes[order[0]].Addr, nodes[order[1]].Addr, Link{Cut: true})
			return func(context.Context) error { c.Net.Heal(); return nil }, nil
		})
}

// Aside returns a fault that cuts the links between the sidecars and all servers.
func Aside() Fault {
	return fault("sidecar cut off", func(_ context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error,
		error) {
		for _, s := range c.sidecars() {
			for _, n := range c.Servers() {
				c.Cut(s, n)
			}
		}
		return func(context.Context) error { c.Net.Heal(); return nil }, nil
	})
}

// KillSidecar returns a fault that kills all sidecars with SIGKILL. When the fault ends, the sidecars are started
// again.
func KillSidecar() Fault {
	return fault("kill -9 of a sidecar", func(_ context.Context, c *Cluster,
		_ *rand.Rand) (func(context.Context) error, error) {
		nodes := c.sidecars()
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
	})
}
