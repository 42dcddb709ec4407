package daprd

import (
	"os"
	"syscall"
)

// SocketsFolder checks path, the default folder with the sockets of pluggable components. If the folder belongs to root
// or to the user uid, SocketsFolder returns path. If the folder belongs to another user, it returns only a warning. If
// path is not a directory, it returns two empty strings.
//
// The owner matters because components receive the secrets in component files. The default folder is in /tmp, where
// another user could create it and receive these secrets.
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
