package daprd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/daprd"
	"github.com/quorate/quorate/internal/testutil"
)

func TestSocketsFolder_OnlyOfUserOrRoot(t *testing.T) {
	dir, me := t.TempDir(), os.Getuid()
	if folder, warning := daprd.SocketsFolder(dir, me); folder != dir || warning != "" {
		t.Errorf("own directory: %q, %q", folder, warning)
	}
	if me != 0 {
		folder, warning := daprd.SocketsFolder(dir, me+1)
		if folder != "" || !strings.Contains(warning, dir+" are not used") {
			t.Errorf("directory of another user: %q, %q", folder, warning)
		}
	} else {
		testutil.Must(t, os.Chown(dir, 12345, 12345))
		if folder, warning := daprd.SocketsFolder(dir, me); folder != "" || !strings.Contains(warning, "another user") {
			t.Errorf("directory of another user: %q, %q", folder, warning)
		}
		testutil.Must(t, os.Chown(dir, 0, 0))
		if folder, _ := daprd.SocketsFolder(dir, 12345); folder != dir {
			t.Error("a directory of root is not used")
		}
	}
	file := filepath.Join(dir, "file")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(dir, "absent")} {
		if folder, warning := daprd.SocketsFolder(path, me); folder+warning != "" {
			t.Errorf("%s: %q, %q", path, folder, warning)
		}
	}
}
