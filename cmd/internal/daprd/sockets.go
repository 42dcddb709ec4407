package daprd

import (
	"os"
	"syscall"
)

// SocketsFolder checks path, the default folder with the sockets of pluggable components. A component behind a
// socket receives the metadata of component files, which contains secrets, and every user may create a directory in
// /tmp. So the folder must belong to the user uid or to root. For such a folder, SocketsFolder returns path. For a
// folder of another user, it returns only a warning. If path is not a directory, it returns two empty strings.
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
