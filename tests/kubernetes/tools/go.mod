module shadowspec.test/tools

go 1.24

require (
	github.com/coredns/coredns v1.12.2
	k8s.io/api v0.33.4
	k8s.io/apimachinery v0.33.4
	k8s.io/client-go v0.33.4
)
