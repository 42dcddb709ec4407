package backup

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

// ReadKeyFile reads the keys in the file at the given path. It returns no keys for an empty path. It refuses a file
// that its group can write, or to which other users have any access.
//
// All errors are fault.Invalid. Their messages begin with the name of the setting that contains the path, for example
// "--backup-key-file".
func ReadKeyFile(setting, path string) ([]Key, error) {
	if path == "" {
		return nil, nil
	}
	bad := func(msg, hint string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "backup.ReadKeyFile", Key: path,
			Msg: setting + " " + path + " " + msg, Hint: hint, Err: err}
	}
	f, info, err := userfile.Open(path)
	if err != nil {
		return nil, bad("cannot be read", "make a key with: quorate backup keygen", withoutPath(err))
	}
	defer f.Close() //nolint:errcheck // read only
	if info.Mode().Perm()&0o027 != 0 {
		return nil, bad(fmt.Sprintf("is open to others than its owner (mode %04o)", info.Mode().Perm()),
			"chmod 600 "+path, nil)
	}
	text, err := userfile.ReadFrom(f)
	if err != nil {
		return nil, bad("cannot be read", "", withoutPath(err))
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return nil, bad("cannot be used", "", err)
	}
	return keys, nil
}

// withoutPath returns the error that an fs.PathError wraps, because the message of the caller already contains the
// path. It returns any other error unchanged.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
