package http_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestWorkflows_DescribesAnInstanceOnEveryPath(t *testing.T) {
	base := newFixture(t).serve(t)
	r, err := http.Post(base+"/v1.0/workflows/dapr/order/start?instanceID=a", "text/plain", strings.NewReader("seven"))
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	for _, version := range []string{"v1.0", "v1.0-beta1", "v1.0-alpha1"} {
		r, err := http.Get(base + "/" + version + "/workflows/any/a")
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			InstanceID, WorkflowName, CreatedAt, LastUpdatedAt, RuntimeStatus string
			Properties                                                        map[string]string
		}
		err = json.NewDecoder(r.Body).Decode(&got)
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK || got.InstanceID != "a" || got.WorkflowName != "order" ||
			got.RuntimeStatus != "PENDING" || got.Properties["dapr.workflow.input"] != "seven" || got.CreatedAt == "" ||
			got.LastUpdatedAt == "" {
			t.Errorf("%s: status %d, %+v, %v", version, r.StatusCode, got, err)
		}
	}
}
