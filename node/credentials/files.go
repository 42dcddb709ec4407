package credentials

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/internal/userfile"
)

// Files name the files of credentials between nodes.
type Files struct {
	Token string // one token, or two during rotation; empty = traffic is not secured
	Cert  string // certificates of an external authority; all three or none
	Key   string
	CA    string

	Certificates trust.Timing  // validity of certificates issued from a token; zero = one day
	Look         time.Duration // interval of the checks for changed files; 0 = 2 s
	Drain        time.Duration // wait before connections that are no longer trusted are closed; 0 = 10 s
}

// Given reports whether credentials are configured.
func (f Files) Given() bool { return f.Token != "" }

// Read reads the credential files. The result sum is a hash of their contents, and is valid even after an error. The
// error names the file that has caused it.
func (f Files) Read() (m trust.Material, sum [sha256.Size]byte, warnings []string, err error) {
	h := sha256.New()
	load := func(flag, path string, secret bool) []byte {
		if err != nil {
			return nil
		}
		var data []byte
		var warning string
		if data, warning, err = readCredential(flag, path, secret); warning != "" {
			warnings = append(warnings, warning)
		}
		fmt.Fprintf(h, "%d ", len(data))
		h.Write(data)
		return data
	}
	tokens := load("--cluster-token-file", f.Token, true)
	var cert, key, ca []byte
	if f.Cert != "" {
		cert, key, ca = load("--cluster-cert-file", f.Cert, false), load("--cluster-key-file", f.Key, true),
			load("--cluster-ca-file", f.CA, false)
	}
	sum = [sha256.Size]byte(h.Sum(nil))
	if err != nil {
		return m, sum, nil, err
	}
	if m.Tokens, err = trust.ParseTokens(tokens); err != nil {
		return m, sum, nil, &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: f.Token,
			Msg: "--cluster-token-file " + f.Token + " cannot be used", Err: err}
	}
	if f.Cert != "" {
		if m.Own, err = trust.ReadPair(cert, key, ca); err != nil {
			return m, sum, nil, &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: f.Cert,
				Msg: "--cluster-cert-file " + f.Cert + " cannot be used", Err: err}
		}
	}
	return m, sum, warnings, nil
}

// Try reads the files and issues a certificate, in the same way as a node that starts. The node id may be empty.
func (f Files) Try(node string) (k *trust.Keeper, warnings []string, err error) {
	m, _, warnings, err := f.Read()
	if err != nil {
		return nil, nil, err
	}
	if k, err = trust.NewKeeper(m, f.Certificates, time.Now); err != nil {
		return nil, nil, err
	}
	node = cmp.Or(node, "doctor")
	_, err = k.Identify(trust.Identity{Node: node, Server: node + ".doctor"})
	return k, warnings, err
}

// readCredential reads a file of at most userfile.MaxSize bytes. If the file contains a secret, readCredential also
// checks the permissions:
//
//   - It returns an error if the group can write the file, or if other users have any access.
//   - It returns a warning if the group can only read the file, because some platforms provide secrets in this way.
func readCredential(flag, path string, secret bool) (data []byte, warning string, err error) {
	bad := func(msg, hint string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "node.credentials", Key: path, Msg: flag + " " + path + " " +
			msg, Hint: hint, Err: err}
	}
	f, info, err := userfile.Open(path)
	if err != nil {
		return nil, "", bad("cannot be read", "", unpath(err))
	}
	defer f.Close() //nolint:errcheck // read only
	switch {
	case info.Size() > userfile.MaxSize:
		return nil, "", bad(fmt.Sprintf("has %d bytes, more than %d", info.Size(), userfile.MaxSize),
			"is it the right file?", nil)
	case secret && info.Mode().Perm()&0o027 != 0:
		return nil, "", bad(fmt.Sprintf("is open to others than its owner (mode %04o)", info.Mode().Perm()),
			"chmod 600 "+path+"; quorate token create --file makes a file that only its owner can read", nil)
	case secret && info.Mode().Perm()&0o040 != 0:
		warning = fmt.Sprintf("%s %s can be read by its group (mode %04o); better: chmod 600 %s", flag, path,
			info.Mode().Perm(), path)
	}
	if data, err = userfile.ReadFrom(f); err != nil {
		return nil, "", bad("cannot be read", "", unpath(err))
	}
	return data, warning, nil
}

// unpath returns err without the path of the file. It is used in messages that already contain the path.
func unpath(err error) error {
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // as package os returns it
		return e.Err
	}
	return err
}
