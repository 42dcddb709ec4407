package builtin_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/loader"
)

var updateFields = flag.Bool("update", false, "rewrite the fields of components in docs/dapr-compatibility.md")

// The fields of Dapr's components that several types have.
const (
	azureFields = " azureTenantId azureClientId azureClientSecret azureCertificate azureCertificateFile" +
		" azureCertificatePassword azureEnvironment"
	awsFields = " region accessKey secretKey sessionToken assumeRoleArn sessionName trustAnchorArn trustProfileArn"
	redisAll  = " redisHost redisPort redisUsername redisPassword sentinelUsername sentinelPassword useEntraID" +
		" enableTLS insecureSkipTLSVerify clientCert clientKey failover sentinelMasterName" +
		" redisType redisDB redisMaxRetries" +
		" redisMinRetryInterval redisMaxRetryInterval dialTimeout readTimeout writeTimeout poolSize poolTimeout" +
		" maxConnAge minIdleConns idleCheckFrequency idleTimeout"
	postgresFields = " connectionString host hostaddr port database user password sslRootCert timeout" +
		" metadataTableName cleanupInterval maxConns connectionMaxIdleTime queryExecMode useAzureAD useAWSIAM" +
		" awsAccessKey awsSecretKey" + azureFields + awsFields
	stateFields = " keyPrefix actorStateStore primaryEncryptionKey secondaryEncryptionKey outboxPublishPubsub" +
		" outboxPublishTopic outboxPubsub outboxDiscardWhenMissingState"
	bindingFields = " direction route"
)

// daprFields returns the metadata names of Dapr 1.18, by component type.
func daprFields() map[string][]string {
	out := map[string][]string{}
	for typ, names := range map[string]string{
		"state.in-memory": stateFields,
		"state.redis":     redisAll + " redeliverInterval processingTimeout ttlInSeconds queryIndexes" + stateFields,
		"state.mongodb": " connectionString host server username password databaseName collectionName params" +
			" writeconcern readconcern operationTimeout" + stateFields,
		"state.postgresql": postgresFields + " tableName tablePrefix" + stateFields,
		"state.azure.cosmosdb": " url masterKey database collection contenttype" + azureFields +
			stateFields,
		"state.sqlserver": " connectionString useAzureAD tableName metadataTableName schemaName keyType keyLength" +
			" indexedProperties cleanupInterval bulkGetChunkSize" + azureFields + stateFields,
		"lock.redis":          redisAll + " redeliverInterval processingTimeout maxRetries maxRetryBackoff",
		"configuration.redis": redisAll + " redeliverInterval processingTimeout maxRetries maxRetryBackoff",
		"configuration.postgresql": " connectionString host hostaddr port database user password sslRootCert" +
			" maxConns connectionMaxIdleTime connMaxIdleTime queryExecMode useAzureAD useAWSIAM awsAccessKey" +
			" awsSecretKey table" + azureFields + awsFields,
		"bindings.azure.eventgrid": " subscriberEndpoint handshakePort scope eventSubscriptionName accessKey" +
			" topicEndpoint tenantId subscriptionId clientId clientSecret" + azureFields + bindingFields,
		"bindings.cron": " schedule" + bindingFields,
		"bindings.http": " url responseTimeout maxResponseBodySize MTLSRootCA MTLSClientCert MTLSClientKey" +
			" MTLSRenegotiation securityToken securityTokenHeader errorIfNot2XX" + bindingFields,
		"secretstores.aws.secretmanager": " endpoint multipleKeyValuesPerSecret" + awsFields,
		"secretstores.azure.keyvault":    " vaultName" + azureFields,
		"secretstores.gcp.secretmanager": " type projectID privateKeyID privateKey clientEmail clientID authURI" +
			" tokenURI authProviderX509CertURL clientX509CertURL",
		"secretstores.hashicorp.vault": " vaultAddr caPem caPath caCert skipVerify tlsServerName" +
			" vaultTokenMountPath vaultToken vaultKVPrefix vaultKVUsePrefix enginePath vaultValueType",
		"secretstores.kubernetes": " defaultNamespace kubeconfigPath",
		"secretstores.local.env":  " prefix",
		"secretstores.local.file": " secretsFile nestedSeparator multiValued",
		"pubsub.in-memory":        " consumerID publishingScopes subscriptionScopes allowedTopics protectedTopics",
		"pubsub.redis": redisAll + " redeliverInterval processingTimeout queueDepth concurrency maxLenApprox" +
			" streamTTL consumerID publishingScopes subscriptionScopes allowedTopics protectedTopics",
		"middleware.http.bearer":      " jwksURL issuer audience",
		"middleware.http.ratelimit":   " maxRequestsPerSecond",
		"middleware.http.routeralias": " routes",
		"middleware.http.uppercase":   " direction",
	} {
		out[typ] = strings.Fields(names)
	}
	return out
}

// fieldsOf returns the fields of every type, including the fields that all types of its building block have. It joins
// the versions of a type: a field works if one version has it.
func fieldsOf(f loader.Factories) map[string][]component.Field {
	out := map[string][]component.Field{}
	add := func(typ string, fields ...[]component.Field) {
		out[pageOf(typ)] = append(out[pageOf(typ)], slices.Concat(fields...)...)
	}
	for typ, one := range f.State {
		add(typ, loader.StateFields(), one.Fields)
	}
	for typ, one := range f.SecretStores {
		add(typ, one.Fields)
	}
	for typ, one := range f.Bindings {
		add(typ, loader.BindingFields(), one.Fields)
	}
	for typ, one := range f.Middleware {
		add(typ, one.Fields)
	}
	for typ, one := range f.Locks {
		add(typ, one.Fields)
	}
	for typ, one := range f.PubSub {
		add(typ, loader.PubSubFields(), one.Fields)
	}
	for typ, one := range f.Configuration {
		if _, twice := out[pageOf(typ)]; !twice { // the type has another name already
			add(typ, one.Fields)
		}
	}
	return out
}

// effectOf returns the effect of a metadata name: works, refused or ignored. names are all names of the field with
// this metadata name.
func effectOf(name string, fields []component.Field) (effect string, names []string) {
	var optional []component.Field
	for _, f := range slices.SortedStableFunc(slices.Values(fields), func(a, b component.Field) int {
		return len(a.Refused) - len(b.Refused) // versions of a type may differ
	}) {
		if all := append([]string{f.Name}, f.Aliases...); slices.ContainsFunc(all, func(n string) bool {
			return strings.EqualFold(n, name)
		}) {
			if f.Refused != "" {
				return "refused", all
			}
			return "works", all
		}
		same := func(o component.Field) bool { return o.Name == f.Name }
		if f.Required = false; !slices.ContainsFunc(optional, same) {
			optional = append(optional, f)
		}
	}
	_, warnings, err := component.Metadata{{Name: name, Value: "x"}}.Check(component.Pos{}, "it", optional)
	if err != nil || len(warnings) == 0 {
		return "refused", nil
	}
	return "ignored", nil
}

func quoted(names []string) string {
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	names = slices.Compact(names)
	for i := range names {
		names[i] = "`" + names[i] + "`"
	}
	return strings.Join(names, ", ")
}

// TestDocs_FieldsOfDaprsComponents compares the page about compatibility with the fields that the types declare.
func TestDocs_FieldsOfDaprsComponents(t *testing.T) {
	var b strings.Builder
	b.WriteString("| Type | Works | Refused | Ignored, with a warning | Not in Dapr |\n" +
		"| --- | --- | --- | --- | --- |\n")
	fields, dapr := fieldsOf(factories(t)), daprFields()
	for _, typ := range slices.Sorted(maps.Keys(fields)) {
		effects, known := map[string][]string{}, map[string]bool{}
		for _, name := range dapr[typ] {
			effect, names := effectOf(name, fields[typ])
			effects[effect] = append(effects[effect], name)
			for _, n := range names {
				known[n] = true
			}
		}
		for _, f := range fields[typ] {
			if f.Refused == "" && !known[f.Name] {
				effects["own"] = append(effects["own"], f.Name)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", typ, quoted(effects["works"]), quoted(effects["refused"]),
			quoted(effects["ignored"]), quoted(effects["own"]))
	}
	const path = "../../docs/dapr-compatibility.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- generated: fields of components -->\n).*?(<!-- end -->)`)
	want := part.ReplaceAll(page, []byte("${1}\n"+strings.TrimSpace(b.String())+"\n\n${2}"))
	if !part.Match(page) {
		t.Fatal("the page has no generated part for fields of components")
	}
	if *updateFields {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(want), string(page)); diff != "" {
		t.Errorf("%s is out of date (run go test ./component/builtin -run FieldsOfDapr -update):\n%s", path, diff)
	}
}

// requestMetadata returns the names of request metadata that Dapr 1.18 reads, by component type. It omits names that
// all types of a building block have.
func requestMetadata() map[string]string {
	return map[string]string{
		"state.azure.cosmosdb":           "partitionKey",
		"bindings.http":                  "path errorIfNot2XX",
		"secretstores.aws.secretmanager": "version_id version_stage",
		"secretstores.azure.keyvault":    "version_id maxresults",
		"secretstores.gcp.secretmanager": "version_id",
		"secretstores.hashicorp.vault":   "version_id",
		"secretstores.kubernetes":        "namespace",
		"configuration.postgresql":       "pgNotifyChannel",
	}
}

// The pages must name the request metadata of Dapr, which no type declares as a field.
func TestDocs_PagesNameRequestMetadataOfDapr(t *testing.T) {
	fields := fieldsOf(factories(t))
	for typ, names := range requestMetadata() {
		if fields[typ] == nil {
			t.Errorf("there is no type %s", typ)
			continue
		}
		text := page(t, typ+".md")
		_, rest, _ := strings.Cut(text, "\n## Metadata\n")
		_, rest, _ = strings.Cut(rest, "\n## ") // after the fields of the component
		before, _, _ := strings.Cut(text, "\n## Metadata\n")
		for name := range strings.FieldsSeq(names) {
			if !regexp.MustCompile("`(metadata\\.)?" + name + "`").MatchString(before + rest) {
				t.Errorf("%s.md does not name the request metadata %s", typ, name)
			}
		}
	}
}
