package backupcmd

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/raftfsm/backup"
)

func TestPrintBackup_OneKey(t *testing.T) {
	var out strings.Builder
	s := backup.Summary{Totals: backup.Totals{Keys: 1, Remembered: 1, Bytes: 54}}
	if err := printBackup(&out, s, false); err != nil {
		t.Fatal(err)
	}
	if want := "1 key, 1 remembered request, 54 B"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in\n%s", want, &out)
	}
}
