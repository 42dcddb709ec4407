package daprd

import (
	"os"
	"syscall"
)

// SocketsFolder checks the default folder for the sockets of pluggable components. It returns path if the folder
// belongs to root or to the user with the id uid. If the folder belongs to another user, it returns only a warning. If
// path is not a directory, both results are empty.
//
// The owner matters because components receive secrets, and any user can create this folder in /tmp.
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
