package backup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/raftfsm/backup"
)

func TestReadKeyFile_ByteOrderMark(t *testing.T) {
	key := strings.Repeat("k", 40)
	for _, mark := range []string{"", "\ufeff"} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(mark+key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := backup.ReadKeyFile("--backup-key-file", path)
		if err != nil || len(keys) != 1 {
			t.Fatalf("%q: %d keys, %v", mark, len(keys), err)
		}
		if want, _ := backup.ParseKeys([]byte(key)); keys[0] != want[0] {
			t.Errorf("%q: another key was read", mark)
		}
	}
}
