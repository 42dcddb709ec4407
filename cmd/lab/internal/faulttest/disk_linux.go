package faulttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers for ioctl calls on file systems. The package x/sys/unix does not define these numbers.
const (
	ioctlFreeze   = 0xc0045877 // FIFREEZE
	ioctlThaw     = 0xc0045878 // FITHAW
	ioctlShutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
	noLogFlush    = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH: data that is not on the device is lost
)

// Disk is the file system of one node: ext4 on a loop device. It is not safe for concurrent use, but its methods may be
// called while the goroutine that Slow has started is running.
type Disk struct {
	image, dir string
	root       *os.File // handle for ioctls on the file system
	loop       string

	mu     sync.Mutex
	frozen bool // guarded by mu
	slow   chan struct{}
	wg     sync.WaitGroup
}

// disksSupported returns nil if this machine can mount ext4 file systems on loop devices. Otherwise its error names
// what is missing.
func disksSupported() error {
	if os.Geteuid() != 0 {
		return errors.New("mounting a disk needs root")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return errors.New("mkfs.ext4 is not installed")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("no loop devices: %w", err)
	}
	return nil
}

// newDisk makes and mounts a sparse disk of size bytes.
func newDisk(path string, size int64) (*Disk, error) {
	d := &Disk{image: path + ".img", dir: path}
	f, err := os.Create(d.image)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err == nil {
		err = os.Mkdir(d.dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	// A small journal, and no time spent on unused inode tables.
	if out, err := exec.Command("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "-J", "size=8",
		d.image).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return d, d.mount()
}

// mount attaches the image to a loop device and mounts it.
func (d *Disk) mount() error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	image, err := os.OpenFile(d.image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	var loop *os.File
	for range 50 { // another process may take the free device first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return err
		}
		if loop, err = os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0); err != nil {
			return err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
			//nolint:gosec // a descriptor is small
		})
		if err == nil {
			break
		}
		_ = loop.Close()
		if loop = nil; !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("the loop device cannot be set up: %w", err)
		}
	}
	if loop == nil {
		return errors.New("no loop device is free")
	}
	defer func() { _ = loop.Close() }() // the mount keeps it open
	d.loop = loop.Name()
	if err := unix.Mount(d.loop, d.dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", d.dir, err)
	}
	d.root, err = os.Open(d.dir)
	return err
}

func (d *Disk) ioctl(request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.root.Fd(), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// Stall makes every write hang until Resume.
func (d *Disk) Stall() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen {
		return nil
	}
	if err := d.ioctl(ioctlFreeze, nil); err != nil {
		return fmt.Errorf("freezing %s: %w", d.dir, err)
	}
	d.frozen = true
	return nil
}

// Resume lets writes continue.
func (d *Disk) Resume() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.frozen {
		return nil
	}
	if err := d.ioctl(ioctlThaw, nil); err != nil {
		return fmt.Errorf("thawing %s: %w", d.dir, err)
	}
	d.frozen = false
	return nil
}

// Slow starts a goroutine that makes the disk hang repeatedly. Each time, the disk hangs for the duration stall, and
// then works for the duration pause. The function stop ends the goroutine, lets the disk work again, and returns all
// errors.
func (d *Disk) Slow(stall, pause time.Duration) (stop func() error) {
	d.slow = make(chan struct{})
	var last error
	d.wg.Go(func() {
		for {
			last = errors.Join(last, d.Stall())
			if d.waits(stall) {
				return
			}
			last = errors.Join(last, d.Resume())
			if d.waits(pause) {
				return
			}
		}
	})
	return func() error {
		close(d.slow)
		d.wg.Wait()
		return errors.Join(last, d.Resume())
	}
}

func (d *Disk) waits(t time.Duration) (stopped bool) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-d.slow:
		return true
	}
}

// Break makes all later writes fail, and discards data that was not flushed to the device. This simulates a failing
// disk or, if the process is killed as well, a power loss. Replug makes the flushed data available again.
func (d *Disk) Break() error {
	flags := uint32(noLogFlush)
	if err := d.ioctl(ioctlShutdown, unsafe.Pointer(&flags)); err != nil { //nolint:gosec // the kernel reads it
		return fmt.Errorf("shutting %s down: %w", d.dir, err)
	}
	return nil
}

// Replug unmounts the disk and mounts it again. The file system then replays its journal. No process may have a file
// on the disk open.
func (d *Disk) Replug() error {
	if err := d.unmount(); err != nil {
		return err
	}
	return d.mount()
}

// unmount unmounts the disk. It waits up to 5 s for a killed process to close its files.
func (d *Disk) unmount() error {
	if d.root == nil {
		return nil
	}
	_ = d.root.Close()
	d.root = nil
	var err error
	for range 250 {
		if err = unix.Unmount(d.dir, 0); !errors.Is(err, syscall.EBUSY) {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("unmounting %s: %w", d.dir, err)
	}
	return nil
}

// Close unmounts the disk and removes its files.
func (d *Disk) Close() error {
	var err error
	if d.root != nil {
		err = d.Resume()
	}
	return errors.Join(err, d.unmount(), os.Remove(d.image))
}

// Dir returns the directory for data on the disk.
func (d *Disk) Dir() string { return filepath.Join(d.dir, "data") }
