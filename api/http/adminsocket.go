package http

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/quorate/quorate/internal/fault"
)

const (
	adminSocket = "admin.sock"
	adminPath   = "admin.path" // says where the socket is, if not beside it

	// maxSocketPath is the longest path of a unix socket that every system takes: Linux
	// has room for 107 bytes, others for 103.
	maxSocketPath = 103
)

// ListenAdmin opens the admin socket of the node that owns dataDir, for its user alone
// (mode 0600). Where the path would be too long, the socket lies in runtimeDir and a file
// in dataDir says so. The caller must hold the lock of dataDir: a socket that is already
// there is taken for the remains of a node that ended without closing it.
func ListenAdmin(dataDir, runtimeDir string) (net.Listener, error) {
	path, err := chooseSocket(dataDir, runtimeDir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, adminFault(fault.Internal, err, "an old admin socket cannot be removed: "+path, "remove it by hand")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, adminFault(fault.Internal, err, "the admin socket cannot be opened: "+path, "")
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, adminFault(fault.Internal, err, "the admin socket cannot be kept to its owner: "+path, "")
	}
	return l, nil
}

// FindAdmin returns the path of the admin socket of the node that owns dataDir. That it
// is there does not mean that the node runs.
func FindAdmin(dataDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, adminPath))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filepath.Join(dataDir, adminSocket), nil
	case err != nil:
		return "", adminFault(fault.Denied, err, "the data directory cannot be read: "+dataDir, "run the command as the user of the node")
	}
	return strings.TrimSpace(string(text)), nil
}

// chooseSocket decides where the socket lies and leaves a note where FindAdmin looks.
func chooseSocket(dataDir, runtimeDir string) (string, error) {
	note, path := filepath.Join(dataDir, adminPath), filepath.Join(dataDir, adminSocket)
	if len(path) <= maxSocketPath {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", adminFault(fault.Internal, err, "an old note about the admin socket cannot be removed: "+note, "remove it by hand")
		}
		return path, nil
	}
	sum := sha256.Sum256([]byte(dataDir))
	path = filepath.Join(runtimeDir, hex.EncodeToString(sum[:8])+".sock")
	if runtimeDir == "" || len(path) > maxSocketPath {
		return "", adminFault(fault.Invalid, nil, "no path is short enough for the admin socket: "+path, "choose a shorter --data-dir, or set XDG_RUNTIME_DIR")
	}
	if err := privateDir(runtimeDir); err != nil {
		return "", err
	}
	if err := os.WriteFile(note, []byte(path+"\n"), 0o600); err != nil {
		return "", adminFault(fault.Internal, err, "the data directory cannot be written: "+dataDir, "")
	}
	return path, nil
}

// privateDir makes dir, or makes sure that it belongs to this user alone: in a directory
// that others can write to, another user may have come first.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return adminFault(fault.Denied, err, "the directory for sockets cannot be made: "+dir, "set XDG_RUNTIME_DIR")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return adminFault(fault.Denied, err, "the directory for sockets cannot be read: "+dir, "set XDG_RUNTIME_DIR")
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || int64(owner.Uid) != int64(os.Geteuid()) {
		return adminFault(fault.Denied, nil, "the directory for sockets is open to others: "+dir, "make it yours with mode 0700, or set XDG_RUNTIME_DIR")
	}
	return nil
}

func adminFault(code fault.Code, err error, msg, hint string) error {
	return &fault.Error{Code: code, Op: "http.Admin", Msg: msg, Hint: hint, Err: err}
}
