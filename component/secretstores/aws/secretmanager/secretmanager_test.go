package secretmanager_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/secretstores/aws/secretmanager"
	"github.com/quorate/quorate/component/secretstores/secretstorestest"
	"github.com/quorate/quorate/internal/fault"
)

// TestMain removes the AWS settings of the machine from the environment of the tests.
func TestMain(m *testing.M) {
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		_ = os.Unsetenv(name)
	}
	_ = os.Setenv("AWS_CONFIG_FILE", filepath.Join(os.TempDir(), "no such file"))
	_ = os.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(os.TempDir(), "no such file"))
	_ = os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	goleak.VerifyTestMain(m)
}

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "wJalrXUtnFEMI/theSecretKey"
	session   = "IQoJb3JpZ2luX2VjtheSession"
)

// cloud is a server that imitates Secrets Manager with the AWS JSON 1.1 protocol.
type cloud struct {
	*secretstorestest.Fake
	mu    sync.Mutex
	calls []string // action and body of each request
}

func newCloud(t testing.TB) *cloud {
	c := &cloud{}
	c.Fake = secretstorestest.NewFake(t, http.HandlerFunc(c.serve))
	return c
}

type call struct {
	SecretId, VersionId, VersionStage, NextToken string
	MaxResults                                   int
}

func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	action := r.Header.Get("X-Amz-Target")
	c.mu.Lock()
	c.calls = append(c.calls, action+" "+string(body))
	c.mu.Unlock()
	auth := r.Header.Get("Authorization")
	var in call
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/" ||
		r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || json.Unmarshal(body, &in) != nil:
		refuse(http.StatusBadRequest, "SerializationException")(w, r)
	case !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential="+accessKey+"/") ||
		!strings.Contains(auth, "/eu-west-1/secretsmanager/aws4_request, SignedHeaders=") ||
		r.Header.Get("X-Amz-Security-Token") != session:
		refuse(http.StatusBadRequest, "UnrecognizedClientException")(w, r)
	case action == "secretsmanager.GetSecretValue":
		get(in)(w, r)
	case action == "secretsmanager.ListSecrets":
		list(in)(w, r)
	default:
		refuse(http.StatusBadRequest, "UnknownOperationException")(w, r)
	}
}

func get(in call) http.HandlerFunc {
	found := func(name, value string) http.HandlerFunc {
		return secretstorestest.Answer(http.StatusOK,
			fmt.Sprintf(`{"ARN":"arn:aws:secretsmanager:eu-west-1:123456789012:secret:%s-a1b2c3",`+
				`"CreatedDate":1.523477145713E9,"Name":%q,%s,"VersionId":"v2","VersionStages":["AWSCURRENT"]}`,
				name, name, value))
	}
	switch in {
	case call{SecretId: "prod/db"}:
		return found("prod/db", `"SecretString":"{\"user\":\"root\",\"password\":\"hunter2\",\"port\":5432}"`)
	case call{SecretId: "prod/db", VersionId: "v1"}:
		return found("prod/db", `"SecretString":"older"`)
	case call{SecretId: "prod/db", VersionStage: "AWSPREVIOUS"}:
		return found("prod/db", `"SecretString":"previous"`)
	case call{SecretId: "plain"}:
		return found("plain", `"SecretString":"p"`)
	case call{SecretId: "binary"}:
		return found("binary", `"SecretBinary":"//79"`)
	case call{SecretId: "prod/db-a1b2c3"}: // the service takes this for the end of an ARN
		return found("prod/db", `"SecretString":"hunter2"`)
	case call{SecretId: "deleted"}:
		return refuse(http.StatusBadRequest, "InvalidRequestException")
	}
	return refuse(http.StatusBadRequest, "ResourceNotFoundException")
}

func list(in call) http.HandlerFunc {
	if in.NextToken == "" {
		return secretstorestest.Answer(http.StatusOK,
			`{"SecretList":[{"ARN":"a","Name":"prod/db"},{"ARN":"b","Name":"plain"}],"NextToken":"t2"}`)
	}
	return secretstorestest.Answer(http.StatusOK,
		`{"SecretList":[{"ARN":"c","Name":"binary"},{"ARN":"d","Name":"deleted"}]}`)
}

// refuse returns a handler that answers with an error in the form of the service.
func refuse(status int, code string) http.HandlerFunc {
	return secretstorestest.Answer(status,
		`{"__type":"`+code+`","Message":"the canonical string should have been {credentials}"}`)
}

func (c *cloud) options() secretmanager.Options {
	return secretmanager.Options{Region: "eu-west-1", AccessKey: accessKey, SecretKey: secretKey, SessionToken: session,
		Endpoint: c.URL, Roots: c.Pool()}
}

func open(t testing.TB, o secretmanager.Options) *secretmanager.Store {
	t.Helper()
	s, err := secretmanager.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore_Conformance(t *testing.T) {
	c := newCloud(t)
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store { return open(t, c.options()) },
		secretstorestest.Options{
			Secrets: map[string]map[string]string{
				"prod/db": {"prod/db": `{"user":"root","password":"hunter2","port":5432}`}, "plain": {"plain": "p"},
				"binary": {"binary": "//79"},
			},
			Absent: "none", Twins: []string{"arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-a1b2c3",
				"prod/db-a1b2c3", "PROD/DB", "deleted"},
		})
}

func TestStore_ConformanceWithSeveralKeys(t *testing.T) {
	c := newCloud(t)
	o := c.options()
	o.MultiValued = true
	secretstorestest.Run(t, func(t *testing.T) secretstores.Store { return open(t, o) }, secretstorestest.Options{
		Secrets: map[string]map[string]string{
			"prod/db": {"user": "root", "password": "hunter2", "port": "5432"}, "plain": {"plain": "p"},
			"binary": {"binary": "//79"},
		},
		Absent: "none",
	})
}

func TestRequests_MatchReference(t *testing.T) {
	c := newCloud(t)
	s := open(t, c.options())
	for want, metadata := range map[string]map[string]string{"older": {"version_id": "v1"},
		"previous": {"version_stage": "AWSPREVIOUS"}} {
		got, err := s.Get(t.Context(), "prod/db", metadata)
		if err != nil || got["prod/db"] != want {
			t.Errorf("%v: %v, %v", metadata, got, err)
		}
	}
	c.calls = nil
	if _, err := s.Bulk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{`secretsmanager.ListSecrets {"MaxResults":100}`,
		`secretsmanager.ListSecrets {"MaxResults":100,"NextToken":"t2"}`}
	if diff := cmp.Diff(want, c.calls[:2]); diff != "" || len(c.calls) != 6 {
		t.Errorf("%d calls %s", len(c.calls), diff)
	}
}

func TestFailures_Service(t *testing.T) {
	c := newCloud(t)
	secretstorestest.RunTroubles(t, secretstorestest.Service{
		Fake: c.Fake, Open: func(t *testing.T) secretstores.Store { return open(t, c.options()) }, Name: "prod/db",
		Throttled:    refuse(http.StatusBadRequest, "ThrottlingException"),
		Denied:       refuse(http.StatusBadRequest, "AccessDeniedException"),
		Expired:      refuse(http.StatusBadRequest, "ExpiredTokenException"),
		Absent:       refuse(http.StatusBadRequest, "ResourceNotFoundException"),
		Down:         refuse(http.StatusInternalServerError, "InternalServiceError"),
		Confidential: []string{accessKey, secretKey, session, "hunter2"},
	})
}

func TestFailures_FurtherRefusals(t *testing.T) {
	c := newCloud(t)
	s := open(t, c.options())
	for name, code := range map[string]fault.Code{
		"DecryptionFailure": fault.Denied, "InvalidParameterException": fault.Invalid,
		"InvalidSignatureException": fault.Denied,
		"RequestExpired":            fault.Denied, "SomethingNew": fault.Invalid,
	} {
		c.Trouble(func(w http.ResponseWriter, r *http.Request) bool {
			refuse(http.StatusBadRequest, name)(w, r)
			return true
		})
		if _, err := s.Get(t.Context(), "prod/db", nil); !fault.Is(err, code) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGet_WithoutCredentials(t *testing.T) {
	c := newCloud(t)
	o := c.options()
	o.AccessKey, o.SecretKey, o.SessionToken = "", "", ""
	_, err := open(t, o).Get(t.Context(), "prod/db", nil)
	if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), "no AWS credentials") {
		t.Error(err)
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	c := newCloud(t)
	for name, spoil := range map[string]func(*secretmanager.Options){
		"half a key": func(o *secretmanager.Options) { o.SecretKey = "" },
		"no region":  func(o *secretmanager.Options) { o.Region = "" },
	} {
		o := c.options()
		spoil(&o)
		if _, err := secretmanager.Open(t.Context(), o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
