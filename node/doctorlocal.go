package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
)

const (
	syncRounds = 16
	syncBytes  = 4 << 10
	syncOK     = 20 * time.Millisecond  // median of forced writes
	syncWarn   = 200 * time.Millisecond // above it elections are lost to the disk
	filesWarn  = 4096
	filesFail  = 512
	seedWait   = 2 * time.Second
)

// Examine looks for what would keep a node of this configuration from working, without
// starting it: the disk, the limits of the process, its ports, and the nodes to join.
func Examine(ctx context.Context, c Config) api.Checkup {
	c = c.WithDefaults()
	var out checkup
	if err := c.Validate(); err != nil {
		out.add("settings", "", api.CheckFail, fault.Text(err), "")
	} else {
		out.add("settings", "", api.CheckOK, "they fit together", "")
	}
	examineDisk(&out, c.Data)
	examineLimits(&out)
	examinePorts(ctx, &out, c)
	examineSeeds(ctx, &out, c.Cluster, examineKeys(&out, c))
	return api.Checkup{Checks: out.sorted()}
}

// examineDisk measures free space, and what it takes to force a write to the disk.
func examineDisk(c *checkup, d Data) {
	dir, err := nearestDir(d.Dir)
	if err != nil {
		c.add("data directory", d.Dir, api.CheckFail, err.Error(), "choose another --data-dir")
		return
	}
	examineSpace(c, dir, d.MinFree)
	took, err := forcedWrites(dir)
	if err != nil {
		c.add("disk sync", dir, api.CheckFail, "a file cannot be written: "+err.Error(), "mend the disk or the rights of the directory, or choose another --data-dir")
		return
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	level := api.CheckOK
	switch {
	case median > syncWarn:
		level = api.CheckFail
	case median > syncOK || worst > syncWarn:
		level = api.CheckWarn
	}
	c.add("disk sync", dir, level, fmt.Sprintf("a forced write of %d KiB takes %s, at worst %s of %d", syncBytes>>10, median.Round(time.Microsecond), worst.Round(time.Microsecond), len(took)),
		"every write waits for the disk: use a local SSD, and no network file system")
}

// nearestDir is the directory, or, if it is not made yet, the one it will be made in.
func nearestDir(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return "", fmt.Errorf("%s is no directory", dir)
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
		c.add("free space", dir, api.CheckWarn, "it cannot be told: "+err.Error(), "")
		return
	}
	free := int64(st.Bavail) * int64(st.Bsize) //nolint:gosec,unconvert // bytes of a disk; types differ between systems
	level := api.CheckOK
	switch {
	case free < minFree:
		level = api.CheckFail
	case free < 4*minFree:
		level = api.CheckWarn
	}
	c.add("free space", dir, level, fmt.Sprintf("%d MiB; below %d MiB (--min-free-disk) no values are stored", free>>20, minFree>>20), "free some space, or use a larger disk")
}

// forcedWrites writes to a file of its own and forces each write to the disk.
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
		c.add("open files", "", api.CheckWarn, "the limit cannot be told: "+err.Error(), "")
		return
	}
	level := api.CheckOK
	switch {
	case l.Cur < filesFail:
		level = api.CheckFail
	case l.Cur < filesWarn:
		level = api.CheckWarn
	}
	c.add("open files", "", level, fmt.Sprintf("the process may have %d open", l.Cur), "raise the limit: ulimit -n 65536, or LimitNOFILE=65536 of the systemd unit")
}

// examinePorts tries to listen where the node would.
func examinePorts(ctx context.Context, c *checkup, conf Config) {
	for _, p := range []struct {
		flag, network, host string
		port                Port
	}{
		{"--http-port", "tcp", conf.API.Listen[0], conf.API.HTTP},
		{"--grpc-port", "tcp", conf.API.Listen[0], conf.API.GRPC},
		{"--gossip-port", "tcp", conf.Cluster.Bind, conf.Cluster.Gossip},
		{"--gossip-port", "udp", conf.Cluster.Bind, conf.Cluster.Gossip},
		{"--peer-port", "tcp", conf.Cluster.Bind, conf.Cluster.Peer},
	} {
		if p.flag == "--grpc-port" && conf.API.GRPCOff {
			continue
		}
		at := net.JoinHostPort(p.host, strconv.Itoa(p.port.Number))
		if err := canListen(ctx, p.network, at); err != nil {
			level := api.CheckFail
			if p.flag != "--http-port" && p.flag != "--grpc-port" && !p.port.Given && !conf.Cluster.joining() {
				level = api.CheckWarn // another port is chosen
			}
			c.add("port", p.flag+" "+p.network, level, err.Error(), "stop what holds the port, or choose another with "+p.flag)
			continue
		}
		c.add("port", p.flag+" "+p.network, api.CheckOK, at+" is free", "")
	}
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

// examineSeeds tries the gossip ports of the nodes to join, and, with keys, whether they
// and this node accept each other.
func examineSeeds(ctx context.Context, c *checkup, conf Cluster, keys *trust.Keeper) {
	if !conf.joining() {
		return
	}
	seeds, err := discovery.ParseSeeds(conf.Join, defaultGossipPort, net.DefaultResolver)
	if err != nil {
		c.add("nodes to join", "", api.CheckFail, fault.Text(err), "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*seedWait)
	defer cancel()
	addrs, err := seeds.Resolve(ctx)
	if err != nil {
		c.add("nodes to join", "", api.CheckWarn, fault.Text(err), "correct the names of --join, or the name service")
	}
	reached := 0
	for _, a := range addrs {
		d := net.Dialer{Timeout: seedWait}
		conn, err := d.DialContext(ctx, "tcp", a.String())
		if err != nil {
			c.add("nodes to join", a.String(), api.CheckWarn, err.Error(), "start the node there, and open its gossip port in every firewall on the way")
			continue
		}
		if keys != nil {
			err = trusts(ctx, conn, keys)
		}
		_ = conn.Close() // nothing was said on it
		reached++
		if err != nil {
			c.add("keys", a.String(), api.CheckFail, "the node there and this one do not accept each other: "+err.Error(), "give both the same --cluster-token-file, or certificates of one authority; its log says what it was shown")
		}
		c.add("nodes to join", a.String(), api.CheckOK, "its gossip port takes connections", "")
	}
	if reached == 0 && conf.BootstrapExpect == 0 {
		c.add("nodes to join", "", api.CheckFail, "none can be reached, and without --bootstrap-expect this node forms no cluster", "start one of them")
	}
}
