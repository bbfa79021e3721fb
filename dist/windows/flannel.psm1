# What start.ps1, boot.ps1, stop.ps1, reset.ps1, install-services.ps1 and kube-proxy.ps1 share. What there is to know of networks
# is in flanneld.exe; here are only parameters, processes and services. Windows PowerShell 5.1, which every Windows Server
# has, must understand all of it.

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

# What we say of services that we made, by which we know them again.
$script:Mark = 'Made by install-services.ps1 of flannel'

function Write-Step([string]$Text) {
    Write-Host ('{0:HH:mm:ss}  {1}' -f (Get-Date), $Text)
}

function Assert-Administrator {
    $me = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
    if (-not $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
        throw 'This takes an elevated shell: start PowerShell by "Run as administrator".'
    }
}

function Assert-File([string]$Path, [string]$Hint) {
    if (-not (Test-Path -LiteralPath $Path -PathType Leaf)) {
        throw "$Path is missing. $Hint"
    }
}

# A whole path, for services start elsewhere and .NET does not know where PowerShell is; without a backslash at its end, by which
# PowerShell 5.1 spoils an argument with spaces.
function Get-FullPath([string]$Path) {
    if (-not $Path) { return $Path }
    $full = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($Path)
    if ($full.Length -gt 3) { $full = $full.TrimEnd('\') }
    $full
}

# Writes a file that says something else, and answers whether it did; without a byte order mark, which Set-Content of
# PowerShell 5.1 would write before UTF-8.
function Write-Text([string]$Path, [string]$Text) {
    if ((Test-Path -LiteralPath $Path) -and [IO.File]::ReadAllText($Path) -ceq $Text) { return $false }
    $null = New-Item -ItemType Directory -Force -Path (Split-Path -Parent $Path)
    [IO.File]::WriteAllText($Path, $Text)
    $true
}

# A JSON object as a table, in which a missing key is no error; empty where there is no file.
function Read-Settings([string]$Path) {
    $settings = @{}
    if (Test-Path -LiteralPath $Path) {
        foreach ($p in ([IO.File]::ReadAllText($Path) | ConvertFrom-Json).PSObject.Properties) { $settings[$p.Name] = $p.Value }
    }
    $settings
}

# The rules by which programs take their command line apart: Start-Process and services join words without any.
function Join-Arguments([string[]]$Arguments) {
    $quoted = foreach ($word in $Arguments) {
        if ($word -ne '' -and $word -notmatch '[\s"]') { $word; continue }
        '"' + ($word -replace '(\\*)"', '$1$1\"' -replace '(\\+)$', '$1$1') + '"'
    }
    $quoted -join ' '
}

# Runs a program: its stdout is the answer, line by line, as UTF-8; its stderr goes to the console as it comes. In a remote
# session, in ISE and where output goes to a file, PowerShell 5.1 would take the first line there for an error that ends all.
function Invoke-Program([string]$Program, [string[]]$Arguments) {
    $ErrorActionPreference = 'Continue'
    $encoding = [Console]::OutputEncoding
    try { [Console]::OutputEncoding = New-Object Text.UTF8Encoding $false } catch { Write-Verbose 'there is no console' }
    $global:LASTEXITCODE = -1 # which it stays if the program cannot be run
    try {
        & $Program @Arguments 2>&1 | ForEach-Object {
            if ($_ -is [Management.Automation.ErrorRecord]) { Write-Host $_.Exception.Message } else { $_ }
        }
    } finally {
        try { [Console]::OutputEncoding = $encoding } catch { Write-Verbose 'there is no console' }
    }
}

# Runs flanneld.exe and answers its exit status; what it says is on the console.
function Invoke-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    Write-Step ('flanneld.exe ' + (Join-Arguments $Arguments))
    Invoke-Program $Flanneld $Arguments | Out-Host
    $LASTEXITCODE
}

# Likewise, and it must succeed.
function Assert-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    $code = Invoke-Flanneld $Flanneld $Arguments
    if ($code -ne 0) {
        throw "flanneld.exe ended with status $code; what it says above is the reason. Run this script again when that is mended."
    }
}

# Runs a program, which must succeed, and answers what it says as one text.
function Read-Program([string]$Program, [string[]]$Arguments) {
    $text = Invoke-Program $Program $Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Program ended with status $LASTEXITCODE; what it says above is the reason." }
    $text -join "`n"
}

# kube-proxy's flags: those of this node's network, and of its HNS, are what flanneld.exe says. Version is what kube-proxy says.
function Get-KubeProxyArguments([string]$Flanneld, [string]$Version, [string]$NodeName, [string]$KubeConfig, [string]$FeatureGates) {
    $answer = Read-Program $Flanneld @('source-vip', '--json', "--kube-proxy-version=$Version", "--kube-proxy-feature-gates=$FeatureGates") | ConvertFrom-Json
    '--v=2'
    '--proxy-mode=kernelspace'
    "--hostname-override=$NodeName" # else kube-proxy takes local endpoints for remote ones, and deletes them
    "--kubeconfig=$KubeConfig"
    $answer.kubeProxyFlags
}

function Get-RecordPath([string]$BaseDir, [string]$Name) { Join-Path $BaseDir "run\$Name.json" }

# The process that we started under this name, if it still runs; another one may have got its number.
function Get-OwnProcess([string]$BaseDir, [string]$Name) {
    $record = Read-Settings (Get-RecordPath $BaseDir $Name)
    if (-not $record.ContainsKey('id')) { return $null }
    $process = Get-Process -Id $record['id'] -ErrorAction SilentlyContinue
    if ($process -and $process.StartTime.ToFileTimeUtc() -eq $record['started']) {
        return $process | Add-Member -NotePropertyName CommandText -NotePropertyValue $record['command'] -PassThru
    }
    $null
}

function Get-OwnService([string]$Name) {
    Get-CimInstance -ClassName Win32_Service -Filter "Name='$Name'" | Where-Object { $_.Description -eq $script:Mark }
}

# A method of a service answers a status, which is no error to PowerShell.
function Invoke-ServiceMethod($Service, [string]$Method, [hashtable]$Arguments) {
    $status = (Invoke-CimMethod -InputObject $Service -MethodName $Method -Arguments $Arguments).ReturnValue
    if ($status -ne 0) { throw "The service $($Service.Name): $Method ended with status $status of Win32_Service." }
}

function Test-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnProcess $BaseDir $Name) { return $true }
    $service = Get-Service -Name $Name -ErrorAction SilentlyContinue
    [bool]($service -and $service.Status -eq 'Running')
}

function Stop-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnService $Name) { Stop-Service -Name $Name -Force; Write-Step "stopped the service $Name" }
    $process = Get-OwnProcess $BaseDir $Name
    if ($process) {
        Stop-Process -InputObject $process -Force
        $null = $process.WaitForExit(10000)
        Write-Step "stopped $Name"
    }
    Remove-Item -LiteralPath (Get-RecordPath $BaseDir $Name) -ErrorAction SilentlyContinue
}

# Makes a service of ours be as it shall and run.
function Start-OwnService([string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [string]$StartMode) {
    $words = @($Program, '--windows-service') + $Arguments
    # A service has no stderr; Kubernetes brings this program to keep what it says.
    $runner = Join-Path (Split-Path -Parent $Program) 'kube-log-runner.exe'
    if (Test-Path -LiteralPath $runner) { $words = @($runner, "-log-file=$LogDir\$Name.log") + $words }
    $command = Join-Arguments $words
    $own = Get-OwnService $Name
    if (-not $own) {
        $null = New-Service -Name $Name -BinaryPathName $command -Description $script:Mark -StartupType $StartMode
        $null = Read-Program 'sc.exe' @('failure', $Name, 'reset=', '600', 'actions=', 'restart/5000/restart/30000')
        Write-Step "made the service $Name"
    } elseif ($own.PathName -cne $command) {
        Invoke-ServiceMethod $own 'Change' @{ PathName = $command }
        Stop-Service -Name $Name -Force
        Write-Step "changed the service $Name"
    }
    Start-Service -Name $Name
}

# Makes kubelet, kube-proxy or flanneld run with these arguments: as a service of ours, or as a process in the background
# that writes to LogDir. One that somebody else made a service of is only started; one that runs otherwise is not touched.
function Start-Component([string]$BaseDir, [string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [bool]$AsService,
    [string]$StartMode = 'Automatic') {
    if ((Get-Service -Name $Name -ErrorAction SilentlyContinue) -and -not (Get-OwnService $Name)) {
        Start-Service -Name $Name
        Write-Step "the service $Name runs; its arguments are left to whoever made it"
        return
    }
    if ($AsService) {
        Start-OwnService $Name $Program $Arguments $LogDir $StartMode
        return
    }
    $command = Join-Arguments (@($Program) + $Arguments)
    $process = Get-OwnProcess $BaseDir $Name
    if ($process -and $process.CommandText -ceq $command) { Write-Step "$Name runs already"; return }
    if ($process) { Stop-Component $BaseDir $Name }
    $other = Get-Process -Name $Name -ErrorAction SilentlyContinue | Select-Object -First 1
    if ($other) { throw "$Name runs already, as process $($other.Id), and this script did not start it: stop it first." }
    foreach ($log in "$LogDir\$Name.log", "$LogDir\$Name.out.log") { # the one before may say why it ended
        if (Test-Path -LiteralPath $log) { Move-Item -LiteralPath $log -Destination "$log.1" -Force }
    }
    $process = Start-Process -FilePath $Program -ArgumentList (Join-Arguments $Arguments) -WindowStyle Hidden -PassThru `
        -RedirectStandardError (Join-Path $LogDir "$Name.log") -RedirectStandardOutput (Join-Path $LogDir "$Name.out.log")
    $null = $process.Handle # else its exit status is lost
    if ($process.WaitForExit(2000)) { throw "$Name ended at once, with status $($process.ExitCode): $LogDir\$Name.log says why." }
    $record = @{ id = $process.Id; started = $process.StartTime.ToFileTimeUtc(); command = $command }
    $null = Write-Text (Get-RecordPath $BaseDir $Name) ($record | ConvertTo-Json)
    Write-Step "started $Name; it writes to $LogDir\$Name.log"
}

Export-ModuleMember -Function *
