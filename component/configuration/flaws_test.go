package configuration_test

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/configuration"
)

func TestFlaws_LogsEachKeyOnce(t *testing.T) {
	var log bytes.Buffer
	f := configuration.NewFlaws(slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		for i := range 200 {
			f.Warn(strconv.Itoa(i), "it is flawed", "hint", "repair it")
		}
	}
	if n := strings.Count(log.String(), `hint="repair it"`); n != 100 {
		t.Errorf("%d warnings, want one for each of the first 100 keys", n)
	}
}
