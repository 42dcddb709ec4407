package settings_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

func TestUnknownVariables_NamesTheNearestSetting(t *testing.T) {
	problems := settings.New().UnknownVariables([]string{
		"QUORATE_HTTP_PROT=1", "QUORATE_COLOUR=red", "PATH=/bin", "DAPR_UNKNOWN=1", "QUORATE_HTTP_PORT=1",
		"QUORATE_OTHER=1",
		// as Kubernetes adds them for a service named quorate
		"QUORATE_SERVICE_HOST=10.0.0.1", "QUORATE_SERVICE_PORT_GOSSIP=7946", "QUORATE_PORT=tcp://10.0.0.1:7946",
		"QUORATE_PORT_7946_TCP_ADDR=10.0.0.1",
	}, "QUORATE_OTHER")
	var got []string
	for _, err := range problems {
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%v has another code", err)
		}
		got = append(got, fault.Text(err))
	}
	want := []string{
		"the environment variable QUORATE_COLOUR is not a setting of Quorate (quorate run --help lists the settings)",
		"the environment variable QUORATE_HTTP_PROT is not a setting of Quorate (did you mean QUORATE_HTTP_PORT?)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
