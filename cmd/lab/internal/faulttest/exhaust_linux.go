package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Fill fills the disk with data. The function free makes room again.
func (d *Disk) Fill() (free func() error, err error) {
	f, err := os.Create(filepath.Join(d.dir, "ballast"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	at := int64(0)
	for step := int64(64 << 20); step >= 512; {
		switch err := unix.Fallocate(int(f.Fd()), 0, at, step); {
		case err == nil:
			at += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case !errors.Is(err, unix.EINTR):
			return nil, fmt.Errorf("filling %s: %w", d.dir, err)
		}
	}
	return func() error { return os.Remove(f.Name()) }, nil
}

// Full returns a fault that fills the disk of one node. The node is the leader if leader is true, and a random follower
// otherwise. When the fault ends, the disk has free space again. The process is then restarted if it has exited.
func Full(leader bool) Fault {
	return onOne("full disk", leader, func(n *Node) (func(context.Context) error, error) {
		free, err := n.Disk.Fill()
		if err != nil {
			return nil, err
		}
		return func(context.Context) error { return errors.Join(free(), n.Revive()) }, nil
	})
}

// Fails returns a fault that makes every write to the disk of one node fail. The node is the leader if leader is true,
// and a random follower otherwise. Ending the fault waits up to 90 seconds until the process has exited, and then
// starts the node again with a working disk. If the process does not exit in time, the result is a Broken error.
func Fails(leader bool) Fault {
	return onOne("failing disk", leader, func(n *Node) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			select {
			case <-n.Ended():
			case <-time.After(patience):
				return &Broken{"a process whose disk fails ends itself", n.Name + " goes on without a disk"}
			case <-ctx.Done():
				return ctx.Err()
			}
			return n.PowerOn(ctx)
		}, n.Disk.Break()
	})
}

// Hung returns a fault that makes the disk of the leader hang. Ending the fault waits up to 90 seconds until the leader
// stops responding, and then lets the disk work again. If the leader has exited, it is restarted. If it still responds,
// the result is a Broken error.
func Hung() Fault {
	return onOne("disk hung permanently", true, func(n *Node) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err := Until(limit, func() error { // its last thread ends only when the disk recovers
				if _, err := n.Status(limit); err == nil {
					return errors.New(n.Name + " still answers")
				}
				return nil
			})
			if err != nil {
				return errors.Join(n.Disk.Resume(), &Broken{"a process whose disk hangs ends itself", err.Error()})
			}
			return errors.Join(n.Disk.Resume(), n.Revive())
		}, n.Disk.Stall()
	})
}

// SlowAll returns a fault that makes the disks of all servers hang repeatedly, each time for the given duration. When
// the fault ends, each process that has exited is restarted.
func SlowAll(stall time.Duration) Fault {
	return fault(fmt.Sprintf("disks of all hang for %s again and again", stall),
		func(_ context.Context, c *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			nodes := c.Servers()
			var stops []func() error
			for _, n := range nodes {
				stops = append(stops, n.Disk.Slow(stall, stall/2))
			}
			return func(context.Context) error {
				var errs []error
				for i, n := range nodes {
					errs = append(errs, stops[i](), n.Revive())
				}
				return errors.Join(errs...)
			}, nil
		})
}

// limit sets a resource limit of the process, such as unix.RLIMIT_AS, to the given value. The function lift restores
// the old limit, and starts the process again if it has ended.
func (n *Node) limit(resource int, most uint64) (lift func() error, err error) {
	n.Mark(fmt.Sprintf("resource %d limited to %d", resource, most))
	pid := n.Pid()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &old); err != nil {
		return nil, err
	}
	if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: old.Max}, nil); err != nil {
		return nil, err
	}
	return func() error {
		if err := unix.Prlimit(pid, resource, &old, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return n.Revive()
	}, nil
}

// Files returns a fault that limits the file descriptors of one node. The node is the leader if leader is true, and a
// random follower otherwise. The process can then open only about one more file or connection.
func Files(leader bool) Fault {
	return onOne("file descriptors exhausted", leader, func(n *Node) (func(context.Context) error, error) {
		open, err := n.Open()
		if err != nil {
			return nil, err
		}
		lift, err := n.limit(unix.RLIMIT_NOFILE, uint64(open)+1) //nolint:gosec // a count
		if err != nil {
			return nil, err
		}
		return func(context.Context) error { return lift() }, nil
	})
}

// Memory returns a fault that limits the address space of one node to its current size. The node is the leader if
// leader is true, and a random follower otherwise. During the fault, clients write large values. When the fault ends,
// the limit is lifted, the clients are stopped, and the process is restarted if it has exited.
func Memory(leader bool) Fault {
	return Fault{Name: onOne("memory exhausted", leader, nil).Name,
		Inflict: func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			leads, n, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			if leader {
				n = leads
			}
			mapped, err := n.memory("VmSize:")
			if err != nil {
				return nil, err
			}
			lift, err := n.limit(unix.RLIMIT_AS, mapped)
			if err != nil {
				return nil, err
			}
			stop := c.heavy(ctx, rnd.Uint64())
			return func(ctx context.Context) error { return errors.Join(lift(), stop(ctx), n.Revive()) }, nil
		}}
}

// memory returns a field of /proc/PID/status in bytes.
func (n *Node) memory(field string) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
	if err != nil {
		return 0, err
	}
	var kilobytes uint64
	rest := Metrics(text).line(field)
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return 0, fmt.Errorf("%s of process %d is %q", field, n.Pid(), rest)
	}
	return kilobytes << 10, nil
}

// Resident returns the size of the resident memory of the process in bytes.
func (n *Node) Resident() (uint64, error) { return n.memory("VmRSS:") }

// OneProcessor returns a fault that restarts one node with GOMAXPROCS=1. The node is the leader if leader is true,
// and a random follower otherwise. When the fault ends, the node is restarted without this setting.
func OneProcessor(leader bool) Fault {
	return onOne("restart with GOMAXPROCS=1", leader, func(n *Node) (func(context.Context) error, error) {
		return func(context.Context) error { return errors.Join(n.Stop(), n.Start()) },
			errors.Join(n.Stop(), n.StartWith("GOMAXPROCS=1"))
	})
}

// Backup returns a harmless fault. When it ends, a random server saves a backup while the workloads run, and the backup
// file is verified.
func Backup() Fault {
	return fault("backup under load", func(_ context.Context, c *Cluster,
		rnd *rand.Rand) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			nodes := c.Servers()
			n := nodes[rnd.IntN(len(nodes))]
			file := filepath.Join(n.dir, "backup.qs")
			defer func() { _ = os.Remove(file) }()
			if _, err := n.Command(limit, "backup", "save", file, "--force"); err != nil {
				return err
			}
			return n.inspect(limit, file)
		}, nil
	})
}
