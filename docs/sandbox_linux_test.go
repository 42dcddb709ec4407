package docs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The commands of a page run in a sandbox, a process in new namespaces: its ports are free, its files are
// temporary, and all that it starts ends with it. The machines of a cluster are addresses of the
// sandbox, each with a home directory.

const (
	insideVariable = "QUORATE_DOCS_PAGE"   // set inside: the page to type
	binaryVariable = "QUORATE_DOCS_BINARY" // set inside: the program
	tmpVariable    = "QUORATE_DOCS_TMP"    // set inside: an empty folder with a short name
	rootVariable   = "QUORATE_DOCS_ROOT"   // set inside where root outside is root inside
	runVariable    = "QUORATE_DOCS"        // set by make docs-test
)

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == "" {
		os.Exit(m.Run())
	}
	if err := inside(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// namespaces returns the attributes of a process in new namespaces. A user who is not root also gets a user namespace,
// in which that user is root.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Getuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// runInside starts this program again in new namespaces, and returns what it printed.
func runInside(t *testing.T, env ...string) (string, error) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "qd") // short: paths of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	// The kernel ends the process with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(env, tmpVariable+"="+tmp)...)
	if os.Getuid() == 0 {
		cmd.Env = append(cmd.Env, rootVariable+"=1")
	}
	cmd.SysProcAttr = namespaces()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// probe stands for a page in a run that only tests whether a sandbox can be made.
const probe = "probe"

// machines skips a test where none can be made.
func machines(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"curl", "sh", "make", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the lines of the documentation need " + tool)
		}
	}
	out, err := runInside(t, insideVariable+"="+probe)
	if err == nil {
		return
	}
	why := err.Error()
	if out != "" {
		why = strings.TrimSpace(out)
	}
	t.Skip("the lines of the documentation need network, mount and process namespaces (root, or user namespaces): " +
		why)
}

// TestSandbox_HasTools skips with the missing tools. .ci/run reads its output.
func TestSandbox_HasTools(t *testing.T) {
	if os.Getenv(runVariable) == "" {
		t.Skip("make docs-test asks for it")
	}
	machines(t)
}

// machine is the sandbox as it was set up.
type machine struct {
	dir   string // a file system in memory
	clone string // the tree, as if just cloned
}

// setUp makes the machine out of the new namespaces.
func setUp() (*machine, error) {
	m := &machine{dir: os.Getenv(tmpVariable)}
	m.clone = filepath.Join(m.dir, "quorate")
	source, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("quorate", m.dir, "tmpfs", 0, "mode=0755") },
		func() error { return unix.Mount("proc", "/proc", "proc", 0, "") },
		func() error { return unix.Sethostname([]byte("machine")) },
		m.hosts,
		network,
		m.folders,
		func() error { return copyTree(source, m.clone) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("a machine cannot be made: %w", err)
		}
	}
	return m, nil
}

// folders makes folders of the system writable in the sandbox. For root these are /var, /usr/local and /etc. Another
// user gets an empty /var and an own /etc/hosts.
func (m *machine) folders() error {
	if os.Getenv(rootVariable) != "" {
		return m.overlay("/var", "/usr/local", "/etc")
	}
	return errors.Join(
		unix.Mount("var", "/var", "tmpfs", 0, "mode=0755"),
		os.MkdirAll("/var/lib", 0o755),
		unix.Mount(m.folder("hosts"), "/etc/hosts", "", unix.MS_BIND, ""),
	)
}

// overlay lets folders be written to without changing them.
func (m *machine) overlay(folders ...string) error {
	for _, folder := range folders {
		upper, work := m.folder("upper"+folder), m.folder("work"+folder)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		if folder == "/etc" {
			if err := os.Rename(m.folder("hosts"), filepath.Join(upper, "hosts")); err != nil {
				return err
			}
		}
		if err := unix.Mount("overlay", folder, "overlay", 0, "lowerdir="+folder+",upperdir="+upper+",workdir="+
			work); err != nil {
			return fmt.Errorf("writing over %s: %w", folder, err)
		}
	}
	return nil
}

func (m *machine) folder(name string) string { return filepath.Join(m.dir, name) }

// address returns the address of a machine of a cluster, which has a name of one letter.
func address(host string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, 0, host[0] - 'a' + 1})
}

// loopback returns the address that stands for 127.0.0.1 on a machine.
func loopback(host string) string { return fmt.Sprint("127.0.0.", host[0]-'a'+1) }

// hosts is the names of machines, as cluster.md has them.
func (m *machine) hosts() error {
	text := "127.0.0.1 localhost machine\n"
	for _, h := range []string{"a", "b", "c", "d", "e"} {
		text += fmt.Sprintf("%s %s.example\n", address(h), h)
	}
	return os.WriteFile(m.folder("hosts"), []byte(text), 0o644)
}

// network enables the loopback device and adds the addresses of the machines to it.
func network() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_LOOPBACK | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return err
	}
	for _, h := range []string{"a", "b", "c", "d", "e"} {
		alias, err := unix.NewIfreq("lo:" + h)
		if err != nil {
			return err
		}
		if err := alias.SetInet4Addr(address(h).AsSlice()); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies the files of the tree, without build results and the git directory.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, below)
		switch {
		case below == "bin" || below == ".git":
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		return copyFile(name, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
