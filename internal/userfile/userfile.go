// Package userfile reads the files that users write: settings, components, secrets, tokens, keys and certificates.
//
// It owns two rules. First, a node never waits for another program when it reads a file; only ReadOnce may wait.
// Second, a file may be in UTF-8 or UTF-16, because editors save both. The package has no goroutines.
package userfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"syscall"
	"unicode/utf16"
)

// errKind is the error for a pipe, a socket or a device.
var errKind = errors.New("it is not a regular file")

// Open opens a file for reading. It returns an error unless the file is a regular file or os.DevNull, because opening
// or reading a pipe can block. Open checks the file that it has opened, so another program cannot replace the file
// after the check.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular() && path != os.DevNull:
		err = &fs.PathError{Op: "read", Path: path, Err: errKind}
	}
	if err != nil {
		_ = f.Close() // read only
		return nil, nil, err
	}
	return f, info, nil
}

// MaxSize is the limit of Read and ReadFrom, in bytes.
const MaxSize = 1 << 20

// Read returns the text of a file that Open accepts, converted by the function Text. It returns an error for a file of
// more than MaxSize bytes.
func Read(path string) ([]byte, error) {
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return ReadFrom(f)
}

// ReadFrom is like Read for a file that Open has returned.
func ReadFrom(f *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(b) > MaxSize {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("it has more than %d bytes", MaxSize)}
	}
	if err != nil {
		return nil, err
	}
	return Text(b), nil
}

// ReadOnce returns the text of any file, converted by the function Text. It waits if the file is a pipe, and has no
// size limit. It is for commands, because their users may name a pipe. A node must use Read instead.
func ReadOnce(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	return Text(b), err
}

// Byte order marks.
const (
	markUTF8    = "\xef\xbb\xbf"
	markUTF16LE = "\xff\xfe"
	markUTF16BE = "\xfe\xff"
)

// Text converts a text to UTF-8 without a byte order mark. The text must be in UTF-8, or in UTF-16 with a byte order
// mark.
func Text(b []byte) []byte {
	switch {
	case bytes.HasPrefix(b, []byte(markUTF8)):
		return b[len(markUTF8):]
	case bytes.HasPrefix(b, []byte(markUTF16LE)):
		return fromUTF16(b[2:], 0)
	case bytes.HasPrefix(b, []byte(markUTF16BE)):
		return fromUTF16(b[2:], 1)
	}
	return b
}

// fromUTF16 converts UTF-16 to UTF-8. low is the offset of the low byte in each pair of bytes: 0 for little-endian, 1
// for big-endian. An odd last byte is dropped.
func fromUTF16(b []byte, low int) []byte {
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = uint16(b[2*i+low]) | uint16(b[2*i+1-low])<<8
	}
	return []byte(string(utf16.Decode(units)))
}

// directive is the line that names version 1.2 of YAML.
var directive = regexp.MustCompile(`(?m)^%YAML[ \t]+1\.2([ \t\r]|$)`)

// YAML returns the text of a YAML file in a form that the YAML library can read. It removes byte order marks at the
// beginning of documents. It also changes the directive "%YAML 1.2" to version 1.1, because the library does not know
// 1.2. Line numbers do not change.
func YAML(b []byte) []byte {
	b = bytes.ReplaceAll(Text(b), []byte("\n"+markUTF8), []byte("\n"))
	return directive.ReplaceAll(b, []byte("%YAML 1.1$1"))
}
