package admin

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
	socketFile = "admin.sock"
	socketNote = "admin.path" // file with the path of a socket that lies in another directory

	// maxSocketPath is the maximum length in bytes of the path of a Unix socket. Linux permits 107 bytes, and other
	// systems 103.
	maxSocketPath = 103
)

// Listen opens the admin socket of the node with the data directory dataDir. Only the operating-system user that runs
// the node can connect (mode 0600).
//
// If the path of a socket in dataDir would be too long, Listen creates the socket in runtimeDir. It then writes the
// path of the socket to a file in dataDir. Listen replaces the socket that a crashed node has left. Therefore the
// caller must hold the lock of dataDir.
func Listen(dataDir, runtimeDir string) (net.Listener, error) {
	path, err := chooseSocket(dataDir, runtimeDir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, socketFault(fault.Internal, err, "an old admin socket cannot be removed: "+path,
			"remove it by hand")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, socketFault(fault.Internal, err, "the admin socket cannot be opened: "+path, "")
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, socketFault(fault.Internal, err, "the mode of the admin socket cannot be set to 0600: "+path, "")
	}
	return l, nil
}

// FindSocket returns the path of the admin socket of the node with the data directory dataDir. The node need not be
// running.
func FindSocket(dataDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, socketNote))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filepath.Join(dataDir, socketFile), nil
	case err != nil:
		return "", socketFault(fault.Denied, err, "the data directory cannot be read: "+dataDir,
			"run the command as the user of the node")
	}
	return strings.TrimSpace(string(text)), nil
}

// chooseSocket returns the path for the socket. If this path is outside dataDir, chooseSocket writes it to a file in
// dataDir, from which FindSocket reads it.
func chooseSocket(dataDir, runtimeDir string) (string, error) {
	note, path := filepath.Join(dataDir, socketNote), filepath.Join(dataDir, socketFile)
	if len(path) <= maxSocketPath {
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", socketFault(fault.Internal, err, "an old note about the admin socket cannot be removed: "+note,
				"remove it by hand")
		}
		return path, nil
	}
	sum := sha256.Sum256([]byte(dataDir))
	path = filepath.Join(runtimeDir, hex.EncodeToString(sum[:8])+".sock")
	if runtimeDir == "" || len(path) > maxSocketPath {
		return "", socketFault(fault.Invalid, nil, "no path is short enough for the admin socket: "+path,
			"choose a shorter --data-dir, or set XDG_RUNTIME_DIR")
	}
	if err := privateDir(runtimeDir); err != nil {
		return "", err
	}
	if err := os.WriteFile(note, []byte(path+"\n"), 0o600); err != nil {
		return "", socketFault(fault.Internal, err, "the data directory cannot be written: "+dataDir, "")
	}
	return path, nil
}

// privateDir creates dir if necessary, and returns an error if another user owns it or can access it. In a directory
// that all users share, such as /tmp, another user may have created dir.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return socketFault(fault.Denied, err, "the directory for sockets cannot be made: "+dir, "set XDG_RUNTIME_DIR")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return socketFault(fault.Denied, err, "the directory for sockets cannot be read: "+dir, "set XDG_RUNTIME_DIR")
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || int64(owner.Uid) != int64(os.Geteuid()) {
		return socketFault(fault.Denied, nil, "other users can access the directory for sockets: "+dir,
			"change its owner to your user and its mode to 0700, or set XDG_RUNTIME_DIR")
	}
	return nil
}

func socketFault(code fault.Code, err error, msg, hint string) error {
	return &fault.Error{Code: code, Op: "admin", Msg: msg, Hint: hint, Err: err}
}
