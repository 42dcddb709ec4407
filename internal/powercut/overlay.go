package powercut

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Tag is the build tag of programs that are built with the overlay.
const Tag = "quorate_powercut"

// hooked lists the functions of package syscall that open, change or close files. The overlay renames each of them, for
// example write to plainwrite. It adds a new function write, which calls syscall.FileHook and then plainwrite.
var hooked = []string{"openat", "Close", "pwrite", "write", "Ftruncate", "Fallocate", "Fsync", "Renameat",
	"unlinkat", "Mkdirat", "linkat"}

// added is the text of the file that the overlay adds to package syscall.
const added = `package syscall

import "sync/atomic"

// FileCall is one call that may change files.
type FileCall struct {
	Name       string
	FD, FD2    int    // of the file or, with a path, of the directory that the path starts from
	Path, To   string // with FD, and with FD2
	Data       []byte // must not be kept
	A, B, C    int64  // the other arguments
}

// FileHook is called before each FileCall. If skip is true, the call is not made and counts as successful. If after is
// not nil, it is called with the result of the call.
var FileHook atomic.Pointer[func(FileCall) (after func(result int, err error), skip bool)]

func hook(c FileCall, call func() (int, error)) (int, error) {
	h := FileHook.Load()
	if h == nil {
		return call()
	}
	after, skip := (*h)(c)
	var n int
	var err error
	if !skip {
		n, err = call()
	}
	if after != nil {
		after(n, err)
	}
	return n, err
}

func hookErr(c FileCall, call func() error) error {
	_, err := hook(c, func() (int, error) { return 0, call() })
	return err
}

func openat(dirfd int, path string, flags int, mode uint32) (int, error) {
	return hook(FileCall{Name: "open", FD: dirfd, Path: path, A: int64(flags)},
		func() (int, error) { return plainopenat(dirfd, path, flags, mode) })
}

func Close(fd int) error {
	return hookErr(FileCall{Name: "close", FD: fd}, func() error { return plainClose(fd) })
}

func pwrite(fd int, p []byte, offset int64) (int, error) {
	return hook(FileCall{Name: "pwrite", FD: fd, Data: p, A: offset},
		func() (int, error) { return plainpwrite(fd, p, offset) })
}

func write(fd int, p []byte) (int, error) {
	return hook(FileCall{Name: "write", FD: fd, Data: p}, func() (int, error) { return plainwrite(fd, p) })
}

func Ftruncate(fd int, length int64) error {
	return hookErr(FileCall{Name: "truncate", FD: fd, A: length}, func() error { return plainFtruncate(fd, length) })
}

func Fallocate(fd int, mode uint32, off int64, len int64) error {
	return hookErr(FileCall{Name: "allocate", FD: fd, A: int64(mode), B: off, C: len},
		func() error { return plainFallocate(fd, mode, off, len) })
}

func Fsync(fd int) error {
	return hookErr(FileCall{Name: "sync", FD: fd}, func() error { return plainFsync(fd) })
}

// fdatasync replaces the system call, also for golang.org/x/sys.
func fdatasync(fd uintptr) (r1, r2 uintptr, e Errno) {
	err := hookErr(FileCall{Name: "sync", FD: int(fd)}, func() error {
		if _, _, e := RawSyscall(SYS_FDATASYNC, fd, 0, 0); e != 0 {
			return e
		}
		return nil
	})
	e, _ = err.(Errno)
	return 0, 0, e
}

func Renameat(olddirfd int, oldpath string, newdirfd int, newpath string) error {
	return hookErr(FileCall{Name: "rename", FD: olddirfd, Path: oldpath, FD2: newdirfd, To: newpath},
		func() error { return plainRenameat(olddirfd, oldpath, newdirfd, newpath) })
}

func unlinkat(dirfd int, path string, flags int) error {
	return hookErr(FileCall{Name: "unlink", FD: dirfd, Path: path},
		func() error { return plainunlinkat(dirfd, path, flags) })
}

// HookedUnlinkat is unlinkat for other packages.
func HookedUnlinkat(dirfd int, path string, flags int) error { return unlinkat(dirfd, path, flags) }

func Mkdirat(dirfd int, path string, mode uint32) error {
	return hookErr(FileCall{Name: "mkdir", FD: dirfd, Path: path},
		func() error { return plainMkdirat(dirfd, path, mode) })
}

func linkat(olddirfd int, oldpath string, newdirfd int, newpath string, flags int) error {
	return hookErr(FileCall{Name: "link", FD: olddirfd, Path: oldpath, FD2: newdirfd, To: newpath},
		func() error { return plainlinkat(olddirfd, oldpath, newdirfd, newpath, flags) })
}
`

// unlinkatBody matches the function Unlinkat of the package internal/syscall/unix. This function calls the kernel
// without package syscall.
var unlinkatBody = regexp.MustCompile(`(?s)(\nfunc Unlinkat\(dirfd int, path string, flags int\) error \{\n).*?\n\}\n`)

// syscallStart is the first line of the function syscall.Syscall. The package golang.org/x/sys calls fdatasync through
// this function. The overlay inserts fdatasyncCode after this line, so that the hook also receives fdatasync.
//
// Syscall must not grow the stack if its arguments are pointers into the stack. The arguments of fdatasync are not, so
// the inserted code may grow the stack.
const (
	syscallStart  = "\nfunc Syscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err Errno) {\n"
	fdatasyncCode = "\tif trap == SYS_FDATASYNC {\n\t\treturn fdatasync(a1)\n\t}\n"
)

// WriteOverlay writes an overlay for go build -overlay to the directory dir, and returns the path of its JSON file. A
// program that is built with the overlay and the build tag Tag can record its file operations. The Go installation
// does not change. WriteOverlay returns an error if it does not recognize package syscall of this Go version.
func WriteOverlay(dir string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	env := strings.Fields(string(out))
	if len(env) != 2 {
		return "", fmt.Errorf("go env answers %q", out)
	}
	root, arch, replace := env[0], env[1], map[string]string{}
	put := func(original, text string) error {
		file := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		replace[original] = file
		return os.WriteFile(file, []byte(text), 0o600)
	}
	change := func(original string, edit func(string) (string, error)) error {
		text, err := os.ReadFile(original) //nolint:gosec // of the Go installation
		if err != nil {
			return err
		}
		changed, err := edit(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w: adapt package powercut to this version", original, err)
		}
		return put(original, changed)
	}
	std := filepath.Join(root, "src", "syscall")
	if err := change(filepath.Join(std, "zsyscall_linux_"+arch+".go"), rename); err != nil {
		return "", err
	}
	if err := put(filepath.Join(std, "filehook_linux.go"), added); err != nil {
		return "", err
	}
	if err := change(filepath.Join(root, "src", "internal", "syscall", "unix", "at.go"),
		once(unlinkatBody, "${1}\treturn syscall.HookedUnlinkat(dirfd, path, flags)\n}\n")); err != nil {
		return "", err
	}
	if err := change(filepath.Join(std, "syscall_linux.go"),
		once(regexp.MustCompile(regexp.QuoteMeta(syscallStart)), syscallStart+fdatasyncCode)); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// rename renames the hooked functions in text. It returns an error unless text has each of them exactly once.
func rename(text string) (string, error) {
	for _, name := range hooked {
		start := "\nfunc " + name + "("
		if n := strings.Count(text, start); n != 1 {
			return "", fmt.Errorf("%d functions have the name %s", n, name)
		}
		text = strings.Replace(text, start, "\nfunc plain"+name+"(", 1)
	}
	return text, nil
}

// once returns a function that replaces the only match of pattern in a text. The function returns an error if the text
// has no match, or several.
func once(pattern *regexp.Regexp, by string) func(string) (string, error) {
	return func(text string) (string, error) {
		if n := len(pattern.FindAllString(text, -1)); n != 1 {
			return "", fmt.Errorf("%d places match %s", n, pattern)
		}
		return pattern.ReplaceAllString(text, by), nil
	}
}
