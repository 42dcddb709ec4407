package backup

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"filippo.io/age"

	"github.com/quorate/quorate/internal/fault"
)

// Key encrypts and authenticates backups. An encrypted backup is an age file (age-encryption.org/v1) with one scrypt
// recipient, whose passphrase is the key. Only a holder of the key can create or change such a file. Public keys of age
// do not give this protection, because anyone who knows one can create a file. A Key never appears in logs.
type Key struct{ passphrase string }

const (
	keyPrefix = "quorate-backup-key-"
	minKey    = 32 // minimum length of a key in characters; the keys of NewKey are longer

	// workFactor is the base-2 logarithm of the cost of scrypt. The value 15 costs 32 MiB of memory and less than a
	// tenth of a second. A higher cost is not needed, because the keys of NewKey have 256 random bits.
	workFactor = 15

	// maxWorkFactor is the highest cost of scrypt that Decrypt accepts in a file, as a base-2 logarithm. The value 18
	// costs 256 MiB of memory.
	maxWorkFactor = 18

	ageMagic = "age-encryption.org/"
)

// NewKey makes a key of 256 random bits.
func NewKey() Key {
	var b [32]byte
	_, _ = rand.Read(b[:]) // rand.Read never returns an error
	return Key{keyPrefix + hex.EncodeToString(b[:])}
}

// Reveal returns the key in plain text, as it is written to a key file.
func (k Key) Reveal() string { return k.passphrase }

// String hides the key.
func (k Key) String() string { return "backup key" }

// GoString hides the key.
func (k Key) GoString() string { return k.String() }

// LogValue hides the key.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// ParseKeys parses the content of a key file, which has one key per line. It ignores empty lines and lines that begin
// with "#". The first key encrypts new backups. Any of the keys can decrypt a backup. ParseKeys returns fault.Invalid
// if the content is not valid.
func ParseKeys(file []byte) ([]Key, error) {
	var keys []Key
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		switch {
		case strings.HasPrefix(line, "AGE-SECRET-KEY-"), strings.HasPrefix(line, "age1"):
			return nil, badKey("it holds a key pair of age-keygen: whoever knows its public half could forge a backup")
		case len(line) < minKey:
			return nil, badKey(fmt.Sprintf("a key has %d characters, at least %d are needed", len(line), minKey))
		}
		keys = append(keys, Key{line})
	}
	if len(keys) == 0 {
		return nil, badKey("it holds no key")
	}
	return keys, nil
}

func badKey(msg string) error {
	return &fault.Error{Code: fault.Invalid, Op: "backup.ParseKeys", Msg: msg,
		Hint: "make a key with: quorate backup keygen"}
}

// Encrypt returns a writer that encrypts a backup and writes it to w. The backup is complete after Close, which does
// not close w.
func Encrypt(w io.Writer, k Key) (io.WriteCloser, error) {
	r, err := age.NewScryptRecipient(k.passphrase)
	if err != nil {
		return nil, fault.Wrap(err, "backup.Encrypt", "")
	}
	r.SetWorkFactor(workFactor)
	out, err := age.Encrypt(w, r)
	if err != nil {
		return nil, fault.Wrap(err, "backup.Encrypt", "")
	}
	return out, nil
}

// Source is a backup that is being read.
type Source struct {
	io.Reader
	Encrypted bool
}

// Decrypt returns the content of the backup in r, which may be encrypted or not. Encrypted content is authentic: a
// holder of one of the keys has written it. If there are keys, Decrypt refuses an unencrypted backup unless plain is
// true. Error codes:
//
//	invalid  the file is encrypted, and there is no key
//	denied   no key fits, or the file is not encrypted although it must be
//	corrupt  the file was changed or damaged; reading the content may return this error too
func Decrypt(r io.Reader, keys []Key, plain bool) (Source, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(len(ageMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return Source{}, err
	}
	switch encrypted := bytes.Equal(head, []byte(ageMagic)); {
	case encrypted && len(keys) == 0:
		return Source{}, &fault.Error{Code: fault.Invalid, Op: "backup.Decrypt", Msg: "the backup is encrypted",
			Hint: "name the file with its key: --backup-key-file"}
	case !encrypted && len(keys) > 0 && !plain:
		return Source{}, &fault.Error{Code: fault.Denied, Op: "backup.Decrypt",
			Msg:  "the backup is not encrypted although a key was given: anyone could have made it",
			Hint: "if you trust the file, use it with --allow-unencrypted"}
	case !encrypted:
		return Source{Reader: b}, nil
	}
	var ids []age.Identity
	for _, k := range keys {
		id, err := age.NewScryptIdentity(k.passphrase)
		if err != nil {
			return Source{}, fault.Wrap(err, "backup.Decrypt", "")
		}
		id.SetMaxWorkFactor(maxWorkFactor)
		ids = append(ids, id)
	}
	clear, err := age.Decrypt(b, ids...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return Source{}, &fault.Error{Code: fault.Denied, Op: "backup.Decrypt",
			Msg:  "the backup was encrypted with another key",
			Hint: "give the key that was used when it was saved; a key file may hold several"}
	case err != nil:
		return Source{}, corruptBackup(err)
	}
	return Source{Reader: authentic{clear}, Encrypted: true}, nil
}

// authentic reads decrypted content. If the decryption fails, it returns fault.Corrupt.
type authentic struct{ r io.Reader }

func (a authentic) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = corruptBackup(err)
	}
	return n, err
}

func corruptBackup(err error) error {
	return &fault.Error{Code: fault.Corrupt, Op: "backup.Decrypt",
		Msg: "the encrypted backup was changed, damaged or cut off", Err: err, Hint: "use another copy"}
}
