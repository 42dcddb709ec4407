package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node/credentials"
	"github.com/quorate/quorate/node/network"
)

const (
	syncRounds = 16                     // number of synced writes
	syncBytes  = 4 << 10                // bytes of each synced write
	syncOK     = 20 * time.Millisecond  // a longer median of synced writes is a warning
	syncWarn   = 200 * time.Millisecond // a longer median is a failure: a leader may lose its leadership
	filesWarn  = 4096                   // a lower limit of open files is a warning
	filesFail  = 512                    // a lower limit of open files is a failure
	seedWait   = 2 * time.Second        // timeout of name resolution, and of the check of one node to join
)

// Disk is where a node keeps its data.
type Disk struct {
	Dir     string
	MinFree int64 // free bytes below which no values are stored
}

// Listener is an address that a node will listen on.
type Listener struct {
	Flag    string // flag that sets the port
	Network string // tcp or udp
	Host    string
	Port    int
	// Soft means that the node can use another port. A port in use is then a warning instead of a failure.
	Soft bool
}

// Plan describes a node that is not running yet.
type Plan struct {
	Invalid     error // the problems of its settings; nil = none
	NodeID      string
	Disk        Disk
	Listeners   []Listener
	Credentials credentials.Files
	Join        []string // the nodes to join, as the user named them; empty = none
	Forms       bool     // the node may form a new cluster
}

// Examine checks whether a node could start and work. It does not start the node. It checks the settings, the disk, the
// limits of the process, the ports, the credential files, and the nodes to join.
func Examine(ctx context.Context, p Plan) schema.Checkup {
	var out checkup
	if p.Invalid != nil {
		out.add("settings", "", schema.CheckFail, fault.Text(p.Invalid), "")
	} else {
		out.add("settings", "", schema.CheckOK, "the settings are valid", "")
	}
	examineDisk(&out, p.Disk)
	examineLimits(&out)
	examinePorts(ctx, &out, p.Listeners)
	examineSeeds(ctx, &out, &p, examineKeys(&out, &p))
	return schema.Checkup{Checks: out.sorted()}
}

// examineDisk measures the free space and the duration of synced writes.
func examineDisk(c *checkup, d Disk) {
	dir, err := nearestDir(d.Dir)
	if err != nil {
		c.add("data directory", d.Dir, schema.CheckFail, err.Error(), "choose another --data-dir")
		return
	}
	examineSpace(c, dir, d.MinFree)
	took, err := forcedWrites(dir)
	if err != nil {
		c.add("disk sync", dir, schema.CheckFail, "a file cannot be written: "+err.Error(),
			"repair the disk or the permissions of the directory, or choose another --data-dir")
		return
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	level := schema.CheckOK
	switch {
	case median > syncWarn:
		level = schema.CheckFail
	case median > syncOK || worst > syncWarn:
		level = schema.CheckWarn
	}
	c.add("disk sync", dir, level, fmt.Sprintf("%d writes of %d KiB with fsync: median %s, slowest %s", len(took),
		syncBytes>>10, median.Round(time.Microsecond), worst.Round(time.Microsecond)),
		"use a local SSD instead of a network file system: every write waits for the disk")
}

// nearestDir returns dir if it exists, and otherwise its nearest parent directory that exists.
func nearestDir(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return "", fmt.Errorf("%s is not a directory", dir)
		case err == nil:
			return dir, nil
		case !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir:
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

func examineSpace(c *checkup, dir string, minFree int64) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		c.add("free space", dir, schema.CheckWarn, "the free space cannot be measured: "+err.Error(), "")
		return
	}
	free := int64(st.Bavail) * int64(st.Bsize) //nolint:gosec,unconvert // bytes of a disk; types differ between systems
	level := schema.CheckOK
	switch {
	case free < minFree:
		level = schema.CheckFail
	case free < 4*minFree:
		level = schema.CheckWarn
	}
	if level == schema.CheckFail { // the same text as in the status and in the log
		c.add("free space", dir, level, fmt.Sprintf("less than %d MiB are free on the disk of %s: %d MiB", minFree>>20,
			dir, free>>20), "free some space; until then this server leads only if no other voter can")
		return
	}
	c.add("free space", dir, level, fmt.Sprintf("%d MiB free; below %d MiB (--min-free-disk) this server leads only "+
		"if no other voter can", free>>20, minFree>>20), "free some space, or use a larger disk")
}

// forcedWrites measures the duration of synced writes in dir. It writes syncRounds times to a temporary file, and syncs
// the file after each write. The result took has the duration of each write, including its sync.
func forcedWrites(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, "doctor-*.tmp")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, syncBytes)
	for range syncRounds {
		begun := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

func examineLimits(c *checkup) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		c.add("open files", "", schema.CheckWarn, "the limit cannot be measured: "+err.Error(), "")
		return
	}
	level := schema.CheckOK
	switch {
	case l.Cur < filesFail:
		level = schema.CheckFail
	case l.Cur < filesWarn:
		level = schema.CheckWarn
	}
	c.add("open files", "", level, fmt.Sprintf("the process may have %d open files", l.Cur),
		"raise the limit: ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit")
}

// examinePorts tries to listen on the addresses of the node.
func examinePorts(ctx context.Context, c *checkup, all []Listener) {
	for _, l := range all {
		at := net.JoinHostPort(l.Host, strconv.Itoa(l.Port))
		if err := canListen(ctx, l.Network, at); err != nil {
			level := schema.CheckFail
			if l.Soft {
				level = schema.CheckWarn // the node picks another port
			}
			c.add("port", l.Flag+" "+l.Network, level, err.Error(), l.fix(err))
			continue
		}
		c.add("port", l.Flag+" "+l.Network, schema.CheckOK, at+" is free", "")
	}
}

// fix returns the hint for a port that cannot be opened.
func (l Listener) fix(err error) string {
	if errors.Is(err, syscall.EADDRINUSE) {
		addr, _ := netip.ParseAddr(l.Host) // zero if Host is a name
		return listen.InUse(l.Network, netip.AddrPortFrom(addr, uint16(l.Port)), l.Flag)
	}
	return "choose another port with " + l.Flag
}

func canListen(ctx context.Context, network, at string) error {
	var lc net.ListenConfig
	if network == "udp" {
		l, err := lc.ListenPacket(ctx, network, at)
		if err != nil {
			return err
		}
		return l.Close()
	}
	l, err := lc.Listen(ctx, network, at)
	if err != nil {
		return err
	}
	return l.Close()
}

// examineSeeds checks whether this node can reach the gossip ports of the nodes to join. If keys is not nil, it also
// checks whether the nodes to join and this node accept each other's certificates.
func examineSeeds(ctx context.Context, c *checkup, p *Plan, keys *trust.Keeper) {
	if len(p.Join) == 0 {
		return
	}
	seeds, err := discovery.ParseSeeds(p.Join, network.DefaultGossipPort, net.DefaultResolver)
	if err != nil {
		c.add("nodes to join", "", schema.CheckFail, fault.Text(err), "")
		return
	}
	resolving, cancel := context.WithTimeout(ctx, seedWait)
	defer cancel()
	addrs, err := seeds.Resolve(resolving)
	if err != nil {
		c.add("nodes to join", "", schema.CheckWarn, fault.Text(err), "correct the names in --join, or fix DNS")
	}
	var reached atomic.Int32
	var all sync.WaitGroup
	for _, a := range addrs {
		all.Go(func() {
			if examineSeed(ctx, c, a.String(), keys) {
				reached.Add(1)
			}
		})
	}
	all.Wait()
	if reached.Load() == 0 && !p.Forms {
		c.add("nodes to join", "", schema.CheckFail,
			"none can be reached, and without --bootstrap-expect this node does not form a cluster",
			"start one of them")
	}
}

// examineSeed checks the node to join at addr, for at most seedWait. It reports whether the node at addr accepts
// connections.
func examineSeed(ctx context.Context, c *checkup, addr string, keys *trust.Keeper) bool {
	ctx, cancel := context.WithTimeout(ctx, seedWait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		c.add("nodes to join", addr, schema.CheckWarn, err.Error(),
			"start the node at this address, and open its gossip port in every firewall between")
		return false
	}
	if keys != nil {
		err = trusts(ctx, conn, keys)
	}
	_ = conn.Close() // nothing was sent on it
	if err != nil {
		c.add("keys", addr, schema.CheckFail, "that node and this one do not accept each other: "+err.Error(),
			"give both nodes the same --cluster-token-file, or certificates of the same authority; the log of "+
				"that node has the reason")
	}
	c.add("nodes to join", addr, schema.CheckOK, "its gossip port accepts connections", "")
	return true
}
