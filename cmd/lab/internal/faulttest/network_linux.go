package faulttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Link is how packets travel from one node to another. The zero value is a perfect link.
type Link struct {
	Cut    bool          // drops all packets without an error
	Loss   float64       // share of dropped packets, 0 to 1
	Delay  time.Duration // added to each packet
	Jitter time.Duration // maximum random addition to Delay, which reorders packets
}

// mtu is the size of the largest packet in bytes. It is large, so that fewer packets pass through this process.
const mtu = 16 << 10

// Network is the network between nodes. It is safe for concurrent use.
type Network struct {
	mu    sync.Mutex // serializes changes of ports and links
	ports atomic.Pointer[map[netip.Addr]*os.File]
	links atomic.Pointer[map[[2]netip.Addr]Link]
	wg    sync.WaitGroup
}

func newNetwork() *Network {
	n := new(Network)
	n.ports.Store(&map[netip.Addr]*os.File{})
	n.links.Store(&map[[2]netip.Addr]Link{})
	return n
}

// with returns a copy of the map *p in which k has the value v.
func with[K comparable, V any](p *map[K]V, k K, v V) *map[K]V {
	out := make(map[K]V, len(*p)+1)
	for k, v := range *p {
		out[k] = v
	}
	out[k] = v
	return &out
}

// attach connects a namespace to the network. It creates a device with the given address in the namespace, and starts
// to forward the packets of the device.
func (n *Network) attach(ns *namespace, addr netip.Addr) error {
	var tun *os.File
	err := ns.do(func() (err error) {
		if err = up("lo", netip.Addr{}); err != nil {
			return err
		}
		if tun, err = openTUN("eth0"); err != nil {
			return err
		}
		return up("eth0", addr)
	})
	if err != nil {
		return fmt.Errorf("the network of %s cannot be made: %w", addr, err)
	}
	n.mu.Lock()
	n.ports.Store(with(n.ports.Load(), addr, tun))
	n.mu.Unlock()
	n.wg.Go(func() { n.forward(addr, tun) })
	return nil
}

// openTUN creates a network device and returns its file. Reading the file returns packets that were sent through the
// device. Writing a packet to the file makes the device receive the packet.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}

// up enables a network device in the namespace of the current thread. If addr is valid, the device first gets this
// address, a /24 netmask and the MTU of the network.
func up(name string, addr netip.Addr) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if addr.IsValid() {
		ip := addr.As4()
		if err := req.SetInet4Addr(ip[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, req); err != nil {
			return err
		}
		if err := req.SetInet4Addr([]byte{255, 255, 255, 0}); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCSIFNETMASK, req); err != nil {
			return err
		}
		req.SetUint32(mtu)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFMTU, req); err != nil {
			return err
		}
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// forward forwards the packets of one node until its device is closed.
func (n *Network) forward(from netip.Addr, tun *os.File) {
	buf := make([]byte, mtu+64)
	for {
		size, err := tun.Read(buf)
		if err != nil {
			return
		}
		if size < 20 || buf[0]>>4 != 4 {
			continue // only IPv4 is supported
		}
		to := netip.AddrFrom4([4]byte(buf[16:20]))
		port, known := (*n.ports.Load())[to]
		link := (*n.links.Load())[[2]netip.Addr{from, to}]
		//nolint:gosec // chance, not a secret
		if !known || link.Cut || (link.Loss > 0 && rand.Float64() < link.Loss) {
			continue
		}
		wait := link.Delay
		if link.Jitter > 0 {
			wait += rand.N(link.Jitter) //nolint:gosec // see above
		}
		if wait == 0 {
			deliver(port, buf[:size])
			continue
		}
		packet := append([]byte(nil), buf[:size]...)
		time.AfterFunc(wait, func() { deliver(port, packet) })
	}
}

// deliver writes a packet to a device. If the queue of the device is full, the packet is lost, as in any network.
func deliver(port *os.File, packet []byte) { _, _ = port.Write(packet) }

// Set changes the link between two addresses in one direction.
func (n *Network) Set(from, to netip.Addr, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links.Store(with(n.links.Load(), [2]netip.Addr{from, to}, l))
}

// Heal removes the faults of every link.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links.Store(&map[[2]netip.Addr]Link{})
}

// detach closes the device of an address.
func (n *Network) detach(addr netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	ports := with(n.ports.Load(), addr, nil)
	tun := (*n.ports.Load())[addr]
	delete(*ports, addr)
	n.ports.Store(ports)
	if tun == nil {
		return nil
	}
	return tun.Close()
}

// close waits until the goroutines that read from devices have ended. All devices must be detached before the call.
func (n *Network) close() { n.wg.Wait() }

// networkSupported returns nil if this machine can create network namespaces with TUN devices. Otherwise its error
// names what is missing.
func networkSupported() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("no TUN devices: %w", err)
	}
	_ = f.Close()
	ns, err := newNamespace()
	if err != nil {
		return err
	}
	ns.close()
	return nil
}
