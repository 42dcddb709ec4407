package daprd

import (
	"os"
	"syscall"
)

// SocketsFolder returns path, the default folder with the sockets of pluggable components, if it is a safe directory.
// It must belong to the user uid or to root. Every user may create a directory in /tmp, and a component behind a
// socket receives the metadata of component files, with secrets. For a directory of another user, SocketsFolder
// returns only a warning.
func SocketsFolder(path string, uid int) (folder, warning string) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return "", ""
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid != 0 && int(owner.Uid) != uid {
		return "", "the sockets of pluggable components in " + path + " are not used, because the directory belongs " +
			"to another user: set DAPR_COMPONENTS_SOCKETS_FOLDER to use it"
	}
	return path, ""
}
